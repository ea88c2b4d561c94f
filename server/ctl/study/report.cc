#include "server/ctl/study/report.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/ctl/study/report_table.h"
#include "server/ctl/study/svg_canvas.h"

namespace cohort {
namespace {

constexpr char kTitle[] = "Which policy to use: a study";

constexpr char kStyle[] =
    "body{font:15px/1.5 Helvetica,Arial,sans-serif;color:#222;max-width:75em;"
    "margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;font-size:13px;display:block;"
    "overflow-x:auto}"
    "th,td{border:1px solid #ccc;padding:.25em .6em;text-align:right;"
    "white-space:nowrap}"
    "th{background:#f3f3f3}td:first-child,td:nth-child(2){text-align:left}"
    "pre{background:#f3f3f3;padding:.7em;overflow-x:auto}"
    "svg{max-width:100%;height:auto}figure{margin:1.5em 0}";

std::string MarkdownTable(const ReportTable& table) {
  std::string text =
      absl::StrCat("| ", absl::StrJoin(table.header, " | "), " |\n|");
  for (size_t i = 0; i < table.header.size(); ++i) {
    absl::StrAppend(&text, i < 2 ? "---|" : "---:|");
  }
  absl::StrAppend(&text, "\n");
  for (const std::vector<std::string>& row : table.rows) {
    absl::StrAppend(&text, "| ", absl::StrJoin(row, " | "), " |\n");
  }
  return text;
}

std::string HtmlTable(const ReportTable& table) {
  std::string text = "<table>\n<tr>";
  for (const std::string& cell : table.header) {
    absl::StrAppend(&text, "<th>", EscapeMarkup(cell), "</th>");
  }
  absl::StrAppend(&text, "</tr>\n");
  for (const std::vector<std::string>& row : table.rows) {
    absl::StrAppend(&text, "<tr>");
    for (const std::string& cell : row) {
      absl::StrAppend(&text, "<td>", EscapeMarkup(cell), "</td>");
    }
    absl::StrAppend(&text, "</tr>\n");
  }
  return text + "</table>\n";
}

// The parts of a report, in either language.
class Writer {
 public:
  virtual ~Writer() = default;
  virtual void Heading(const std::string& text) = 0;
  virtual void Paragraph(const std::string& text) = 0;
  virtual void List(absl::Span<const std::string> items) = 0;
  virtual void Table(const ReportTable& table) = 0;
  virtual void Plot(const StudyPlot& plot) = 0;
  virtual void Command(const std::string& text) = 0;
  virtual std::string Finish() = 0;
};

class MarkdownWriter final : public Writer {
 public:
  void Heading(const std::string& text) override {
    absl::StrAppend(&text_, "## ", text, "\n\n");
  }
  void Paragraph(const std::string& text) override {
    absl::StrAppend(&text_, text, "\n\n");
  }
  void List(absl::Span<const std::string> items) override {
    for (const std::string& item : items) {
      absl::StrAppend(&text_, "- ", item, "\n");
    }
    absl::StrAppend(&text_, "\n");
  }
  void Table(const ReportTable& table) override {
    absl::StrAppend(&text_, MarkdownTable(table), "\n");
  }
  void Plot(const StudyPlot& plot) override {
    absl::StrAppend(&text_, "![", plot.caption, "](", plot.file, ")\n\n",
                    plot.caption, "\n\n");
  }
  void Command(const std::string& text) override {
    absl::StrAppend(&text_, "    ", text, "\n\n");
  }
  std::string Finish() override {
    return absl::StrCat("# ", kTitle, "\n\n", text_);
  }

 private:
  std::string text_;
};

class HtmlWriter final : public Writer {
 public:
  void Heading(const std::string& text) override { Tag("h2", text); }
  void Paragraph(const std::string& text) override { Tag("p", text); }
  void List(absl::Span<const std::string> items) override {
    absl::StrAppend(&text_, "<ul>\n");
    for (const std::string& item : items) Tag("li", item);
    absl::StrAppend(&text_, "</ul>\n");
  }
  void Table(const ReportTable& table) override {
    absl::StrAppend(&text_, HtmlTable(table));
  }
  void Plot(const StudyPlot& plot) override {
    absl::StrAppend(&text_, "<figure>\n", plot.svg, "<figcaption>",
                    EscapeMarkup(plot.caption), "</figcaption>\n</figure>\n");
  }
  void Command(const std::string& text) override { Tag("pre", text); }
  std::string Finish() override {
    return absl::StrCat(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta "
        "charset=\"utf-8\">\n<meta name=\"viewport\" "
        "content=\"width=device-width\">\n<title>",
        kTitle, "</title>\n<style>", kStyle, "</style>\n</head>\n<body>\n<h1>",
        kTitle, "</h1>\n", text_, "</body>\n</html>\n");
  }

 private:
  void Tag(const char* name, const std::string& text) {
    absl::StrAppend(&text_, "<", name, ">", EscapeMarkup(text), "</", name,
                    ">\n");
  }

  std::string text_;
};

std::string Compose(const StudyReport& report,
                    const Recommendation& recommendation,
                    absl::Span<const StudyPlot> plots, Writer& writer) {
  const StudySummary& summary = report.summary;
  writer.Heading("Recommendation");
  writer.List(InWords(summary, recommendation));
  writer.Heading("How the recommendation follows");
  writer.List(RecommendationRule());
  writer.Heading(absl::StrCat("Test ", summary.measure, " (%)"));
  writer.Paragraph(absl::StrCat(
      "Mean ± half the width of the 95 % confidence interval, over ",
      "the seeds. ", kMarksText));
  writer.Table(MeasureTable(summary, recommendation));
  writer.Heading("Gap between the batch's own and moving statistics (points)");
  writer.Table(GapTable(summary));
  writer.Heading("Time of a run (s)");
  writer.Paragraph(
      "As measured, while other runs of the study may have been running.");
  writer.Table(SecondsTable(summary));
  writer.Heading("Plots");
  for (const StudyPlot& plot : plots) writer.Plot(plot);
  writer.Heading("Runs");
  writer.Paragraph(absl::StrCat(report.runs.size(), " runs, by"));
  writer.Command(report.command);
  if (!report.left_out.empty()) {
    writer.Paragraph("Left out:");
    writer.List(report.left_out);
  }
  return writer.Finish();
}

std::string NumberOr(std::optional<double> value, int decimals) {
  return value.has_value() ? absl::StrFormat("%.*f", decimals, *value) : "";
}

}  // namespace

std::string ToCsv(const StudyReport& report) {
  std::string text =
      "aggregation,staleness,normalization,bn_statistics,order,workers,"
      "batch_size,seed,measure,percent,gap_points,seconds,target_percent,"
      "seconds_to_target,wire\n";
  for (const auto& [run, result] : report.runs) {
    const double target = report.summary.target.at(run.condition.order);
    for (const auto& [kind, curve] : result.curves) {
      absl::StrAppendFormat(
          &text, "%s,%s,%s,%s,%s,%d,%d,%d,%s,%.4f,%.4f,%.3f,%.4f,%s,%s\n",
          run.policy.aggregation, run.policy.staleness,
          run.policy.normalization, kind, run.condition.order,
          run.condition.workers, run.condition.batch_size, run.seed,
          result.measure, result.Final(kind), result.Gap(kind), result.seconds,
          target, NumberOr(result.SecondsTo(kind, target), 3),
          run.policy.wire.empty() ? "float32" : run.policy.wire);
    }
  }
  return text;
}

std::string ToMarkdown(const StudyReport& report,
                       const Recommendation& recommendation,
                       absl::Span<const StudyPlot> plots) {
  MarkdownWriter writer;
  return Compose(report, recommendation, plots, writer);
}

std::string ToHtml(const StudyReport& report,
                   const Recommendation& recommendation,
                   absl::Span<const StudyPlot> plots) {
  HtmlWriter writer;
  return Compose(report, recommendation, plots, writer);
}

}  // namespace cohort
