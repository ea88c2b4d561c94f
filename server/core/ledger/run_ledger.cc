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

void RunLedger::NoteSentRates(const std::vector<double>& rates) {
  sent_learning_rate.reset();
  if (!rates.empty()) sent_learning_rate = rates.front();
}

}  // namespace cohort
