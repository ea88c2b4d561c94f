#include "server/core/ledger/run_ledger.h"

namespace cohort {

void RunLedger::NoteMeasures(const std::vector<Measure>& noted) {
  for (const Measure& measure : noted) {
    if (measures.size() >= kMeasureNamesMax &&
        !measures.contains(measure.name)) {
      continue;
    }
    measures[measure.name] = measure.sum / measure.weight;
  }
}

}  // namespace cohort
