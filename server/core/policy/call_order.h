#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "common/moments.h"

namespace cohort {

// The order in which members reach the batch-norm calls of a step, as learnt
// from repeated attempts. It decides which rendezvous
// is completed without some of the members when each of them waits in another
// one.
//
// The attempts of one step only add to the set of known orders, so a step
// ends: either an attempt succeeds, or it adds nothing, and then the members
// contradict each other. Orders from earlier steps are used only where the
// present step has shown none, because a program may change its
// order from step to step.
class CallOrder {
 public:
  // Some member reaches `after` right after `before`.
  struct Edge {
    CallPlace before;
    CallPlace after;

    friend bool operator==(const Edge&, const Edge&) = default;
  };
  // Part of the state of a run.
  struct State {
    // The step that taught `now`. Absent: nothing was learnt yet.
    std::optional<Version> step;
    // In the order in which they were learnt.
    std::vector<Edge> now;
    // Learnt in earlier steps, latest first. They contain no cycle.
    std::vector<Edge> old;

    friend bool operator==(const State&, const State&) = default;
  };

  CallOrder() = default;
  explicit CallOrder(const State& state);
  State state() const;

  // The calls of each member in an attempt of `step`, in the order in which it
  // reached them; members in rank order. Returns false if they teach nothing
  // that earlier attempts of the step have not shown.
  bool Learn(absl::Span<const std::vector<CallPlace>> sequences, Version step);

  // The index of the call to complete first. `candidates` must not be empty;
  // where nothing that was learnt decides, the first of them is chosen.
  size_t First(absl::Span<const CallPlace> candidates) const;

 private:
  using Node = int32_t;
  using NodeEdge = std::pair<Node, Node>;
  // Edges as they were learnt, and by node.
  struct Graph {
    std::vector<NodeEdge> edges;
    std::set<NodeEdge> known;
    std::vector<std::vector<Node>> next;

    // False if it was there.
    bool Add(NodeEdge edge);
  };

  Node NodeOf(const CallPlace& place);
  static Graph FromEdges(CallOrder& order, const std::vector<Edge>& edges);
  std::vector<Edge> EdgesOf(const Graph& graph) const;
  // Moves what was learnt to the older edges.
  void BeginStep(Version step);
  // For each of `nodes`, whether a path leads to it from `from`: over the edges
  // of this step, or over all.
  std::vector<bool> ReachedFrom(Node from, absl::Span<const Node> nodes,
                                bool all) const;

  std::optional<Version> step_;
  Graph now_;
  Graph old_;
  std::map<CallPlace, Node> nodes_;
  // By node.
  std::vector<CallPlace> places_;
};

}  // namespace cohort
