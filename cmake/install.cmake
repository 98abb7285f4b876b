# What `cmake --install` puts in place: the libraries, the public headers under the paths by which
# they are included, and a package that find_package(knear) finds.
#
#   find_package(knear 0.1 REQUIRED)
#   target_link_libraries(mine PRIVATE knear::knear)      # or one folder: knear::knn
#
# One component, so that the Python wheel can leave it out.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/knear)

get_property(libraries GLOBAL PROPERTY KNEAR_LIBRARIES)
install(TARGETS ${libraries} knear_all EXPORT knearTargets
        ARCHIVE COMPONENT development
        FILE_SET HEADERS COMPONENT development)
install(EXPORT knearTargets NAMESPACE knear:: DESTINATION ${package_dir} COMPONENT development)

configure_package_config_file(cmake/knearConfig.cmake.in ${PROJECT_BINARY_DIR}/knearConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/knearConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/knearConfig.cmake ${PROJECT_BINARY_DIR}/knearConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT development)
