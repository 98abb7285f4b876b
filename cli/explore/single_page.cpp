#include "cli/explore/single_page.hpp"

#include <cstring>
#include <filesystem>

#include "cli/explore/page_files.hpp"
#include "cli/output.hpp"
#include "cli/png.hpp"
#include "knear/core/error.hpp"

namespace knear::cli {
namespace {

// JSON within a script element: a text may not end it, nor begin a comment.
std::string script_json(const nlohmann::ordered_json& value) {
  std::string out;
  for (const char c : value.dump())
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  return out;
}

std::string block(const std::string& id, const std::string& type, const std::string& content) {
  return fmt::format("<script type=\"{}\" id=\"data-{}\">{}</script>\n", type, id, content);
}

template <class T>
std::string binary(const std::string& id, const std::vector<T>& values) {
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return block(id, "application/base64", base64(bytes));
}

// Which array of JavaScript holds the numbers: what is exact.
template <class T>
struct Kept {
  using Type = float;
  static constexpr const char* name = "Float32Array";
};
template <>
struct Kept<std::uint8_t> {
  using Type = std::uint8_t;
  static constexpr const char* name = "Uint8Array";
};
template <>
struct Kept<std::int8_t> {
  using Type = std::int8_t;
  static constexpr const char* name = "Int8Array";
};
template <>
struct Kept<double> {
  using Type = double;
  static constexpr const char* name = "Float64Array";
};

std::int64_t kept_bytes(ElementType type) {
  switch (type) {
    case ElementType::u8:
    case ElementType::i8:
      return 1;
    case ElementType::f64:
      return 8;
    case ElementType::f32:
    case ElementType::f16:
    case ElementType::bf16:
      break;
  }
  return 4;
}

std::string vectors_block(AnyMatrixView rows, std::string* array) {
  return visit(rows, [&](auto typed) {
    using T = std::remove_cvref_t<decltype(*typed.row(0))>;
    using Type = typename Kept<T>::Type;
    *array = Kept<T>::name;
    std::vector<Type> numbers;
    numbers.reserve(typed.rows() * typed.cols());
    for (std::int64_t i = 0; i < typed.rows(); ++i)
      for (std::int64_t c = 0; c < typed.cols(); ++c)
        numbers.push_back(static_cast<Type>(to_double(typed.row(i)[c])));
    return binary("vectors", numbers);
  });
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  if (at == std::string::npos) throw Error(fmt::format("the page lacks '{}'", what));
  return text.replace(at, what.size(), by);
}

}  // namespace

void check_page_size(const Items& items, std::int64_t k) {
  const std::int64_t rows = items.rows.rows();
  std::int64_t bytes =
      rows * items.rows.cols() * kept_bytes(items.rows.type()) + rows * (8 * k + 16);
  for (const std::string& label : items.labels) bytes += std::ssize(label) + 3;
  for (const std::string& name : items.images.names) {
    std::error_code absent;
    const auto size = std::filesystem::file_size(items.images.path + "/" + name, absent);
    if (!absent) bytes += static_cast<std::int64_t>(size);
  }
  if (bytes > most_page_bytes)
    throw InvalidArgument(
        "--html would hold {} of vectors, graph and items, and at most {} are written: serve them "
        "by --port, or take fewer rows",
        readable_bytes(static_cast<double>(bytes)),
        readable_bytes(static_cast<double>(most_page_bytes)));
}

std::string single_page(const Explorer& explorer, MatrixView<float> places) {
  const Items& items = explorer.items();
  const NeighborGraph& graph = explorer.graph();
  nlohmann::ordered_json info = explorer.info();
  std::vector<std::int32_t> ids;
  std::vector<float> distances, map;
  for (std::int64_t i = 0; i < graph.rows(); ++i) {
    for (std::int64_t j = 0; j < graph.k(); ++j) {
      ids.push_back(static_cast<std::int32_t>(graph.ids().row(i)[j]));
      distances.push_back(graph.distances().row(i)[j]);
    }
    map.insert(map.end(), places.row(i), places.row(i) + 2);
  }
  std::vector<std::int32_t> components;
  for (const std::int64_t component : explorer.components().of_row)
    components.push_back(static_cast<std::int32_t>(component));
  std::string array;
  std::string data = vectors_block(items.rows, &array);
  info["array"] = array;
  data += binary("ids", ids) + binary("distances", distances) + binary("places", map) +
          binary("components", components) + binary("classes", items.classes);
  if (!items.labels.empty()) data += block("labels", "application/json", script_json(items.labels));
  if (items.kind == Items::Kind::images) {
    auto pictures = nlohmann::ordered_json::array();
    for (std::int64_t i = 0; i < graph.rows(); ++i) {
      const std::string bytes = items.picture(i);
      pictures.push_back(fmt::format("data:{};base64,{}", picture_type(bytes), base64(bytes)));
    }
    data += block("pictures", "application/json", script_json(pictures));
    data += block("files", "application/json", script_json(items.images.names));
  }
  // Gaps that take too long are left out.
  if (explorer.components().sizes.size() > 1 &&
      explorer.gap_seconds() <= Explorer::longest_gap_seconds) {
    auto gaps = nlohmann::ordered_json::array();
    for (const Bridge& gap : explorer.gaps()) gaps.push_back({gap.from, gap.to, gap.distance});
    data += block("gaps", "application/json", script_json(gaps));
  }
  data += block("info", "application/json", script_json(info));

  const std::span<const PageFile> files = page_files();
  std::string page(files[0].content);
  const std::string policy =
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src "
      "'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
      "form-action 'none'\">";
  page = replaced(page, "<meta charset=\"utf-8\">", "<meta charset=\"utf-8\">\n" + policy);
  for (const PageFile& file : files.subspan(1)) {
    const std::string name(file.name), content(file.content);
    if (name.ends_with(".css"))
      page = replaced(page, fmt::format("<link rel=\"stylesheet\" href=\"{}\">", name),
                      "<style>\n" + content + "</style>");
    else
      page = replaced(page, fmt::format("<script src=\"{}\"></script>", name),
                      "<script>\n" + content + "</script>");
  }
  return replaced(page, "<!-- data -->", data);
}

}  // namespace knear::cli
