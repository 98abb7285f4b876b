#include "knear/index/ivf_pq.hpp"

#include "knear/core/public_call.hpp"
#include "knear/index/impl/index_impl.hpp"

namespace knear {
namespace {

using detail::CodeKind;

constexpr std::int64_t no_lists = -1;

std::unique_ptr<Index::Impl> impl_of(std::int64_t dim, std::int64_t lists,
                                     std::int64_t sub_quantizers, Metric metric,
                                     const CodeOptions& options) {
  return detail::public_call([&] {
    detail::check_index_dim(dim);
    if (lists != no_lists) detail::check_lists(lists);
    if (options.bits != 8 && options.bits != 4)
      throw InvalidArgument("bits must be 4 or 8, but is {}", options.bits);
    return std::make_unique<Index::Impl>(detail::IndexShape{
        .dim = dim,
        .metric = metric,
        .lists = std::max<std::int64_t>(0, lists),
        .codes =
            detail::CodeShape{sub_quantizers > 0 ? CodeKind::product : CodeKind::scalar,
                              sub_quantizers, options.bits, lists != no_lists && options.residual},
        .refine = options.refined ? std::optional(detail::RefineShape{}) : std::nullopt});
  });
}

std::int64_t checked_parts(std::int64_t dim, std::int64_t sub_quantizers) {
  if (sub_quantizers < 1 || dim % sub_quantizers != 0)
    throw InvalidArgument("sub_quantizers must divide the columns, which are {}, but is {}", dim,
                          sub_quantizers);
  return sub_quantizers;
}

}  // namespace

IvfPqIndex::IvfPqIndex(std::int64_t dim, std::int64_t lists, std::int64_t sub_quantizers,
                       Metric metric, const CodeOptions& options)
    : Index(impl_of(dim, lists, checked_parts(dim, sub_quantizers), metric, options)) {}

PqIndex::PqIndex(std::int64_t dim, std::int64_t sub_quantizers, Metric metric,
                 const CodeOptions& options)
    : Index(impl_of(dim, no_lists, checked_parts(dim, sub_quantizers), metric, options)) {}

IvfSqIndex::IvfSqIndex(std::int64_t dim, std::int64_t lists, Metric metric,
                       const CodeOptions& options)
    : Index(impl_of(dim, lists, 0, metric, options)) {}

SqIndex::SqIndex(std::int64_t dim, Metric metric, const CodeOptions& options)
    : Index(impl_of(dim, no_lists, 0, metric, options)) {}

}  // namespace knear
