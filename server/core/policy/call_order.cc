#include "server/core/policy/call_order.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"

namespace cohort {
namespace {

// Limit on the edges of earlier steps. Without one of them a step may take more
// attempts; the result is the same.
constexpr size_t kOldEdgesMax = size_t{1} << 16;

// A graph without cycles that grows edge by edge. Its nodes keep a topological
// order, so that only an edge against that order has to be searched for a
// cycle.
// Source: Pearce and Kelly, "A Dynamic Topological Sort Algorithm for Directed
//   Acyclic Graphs", 2006.
class AcyclicGraph {
 public:
  explicit AcyclicGraph(size_t nodes)
      : next_(nodes), previous_(nodes), position_(nodes) {
    std::iota(position_.begin(), position_.end(), 0);
  }

  // False, and no change, if the edge would close a cycle.
  bool Add(size_t from, size_t to) {
    if (from == to) return false;
    if (position_[to] < position_[from] && !Reorder(from, to)) return false;
    next_[from].push_back(to);
    previous_[to].push_back(from);
    return true;
  }

 private:
  // Moves what `to` leads to behind what leads to `from`.
  bool Reorder(size_t from, size_t to) {
    std::vector<size_t> after = {to};
    std::vector<bool> seen(next_.size());
    seen[to] = true;
    for (size_t i = 0; i < after.size(); ++i) {
      for (size_t node : next_[after[i]]) {
        if (node == from) return false;
        if (seen[node] || position_[node] > position_[from]) continue;
        seen[node] = true;
        after.push_back(node);
      }
    }
    std::vector<size_t> before = {from};
    seen[from] = true;
    for (size_t i = 0; i < before.size(); ++i) {
      for (size_t node : previous_[before[i]]) {
        if (seen[node] || position_[node] < position_[to]) continue;
        seen[node] = true;
        before.push_back(node);
      }
    }
    Place(before, after);
    return true;
  }

  // Gives the nodes their present positions in another order.
  void Place(std::vector<size_t>& before, std::vector<size_t>& after) {
    const auto by_position = [this](size_t a, size_t b) {
      return position_[a] < position_[b];
    };
    std::sort(before.begin(), before.end(), by_position);
    std::sort(after.begin(), after.end(), by_position);
    std::vector<size_t> nodes = before;
    nodes.insert(nodes.end(), after.begin(), after.end());
    std::vector<size_t> positions;
    for (size_t node : nodes) positions.push_back(position_[node]);
    std::sort(positions.begin(), positions.end());
    for (size_t i = 0; i < nodes.size(); ++i) {
      position_[nodes[i]] = positions[i];
    }
  }

  std::vector<std::vector<size_t>> next_;
  std::vector<std::vector<size_t>> previous_;
  std::vector<size_t> position_;
};

}  // namespace

bool CallOrder::Graph::Add(NodeEdge edge) {
  if (!known.insert(edge).second) return false;
  edges.push_back(edge);
  const auto from = static_cast<size_t>(edge.first);
  if (next.size() <= from) next.resize(from + 1);
  next[from].push_back(edge.second);
  return true;
}

CallOrder::CallOrder(const State& state) : step_(state.step) {
  now_ = FromEdges(*this, state.now);
  old_ = FromEdges(*this, state.old);
}

CallOrder::State CallOrder::state() const {
  return {.step = step_, .now = EdgesOf(now_), .old = EdgesOf(old_)};
}

CallOrder::Node CallOrder::NodeOf(const CallPlace& place) {
  const auto [at, added] =
      nodes_.try_emplace(place, static_cast<Node>(places_.size()));
  if (added) places_.push_back(place);
  return at->second;
}

CallOrder::Graph CallOrder::FromEdges(CallOrder& order,
                                      const std::vector<Edge>& edges) {
  Graph graph;
  for (const Edge& edge : edges) {
    const Node before = order.NodeOf(edge.before);
    graph.Add({before, order.NodeOf(edge.after)});
  }
  return graph;
}

std::vector<CallOrder::Edge> CallOrder::EdgesOf(const Graph& graph) const {
  std::vector<Edge> edges;
  for (const auto& [before, after] : graph.edges) {
    edges.push_back({.before = places_[static_cast<size_t>(before)],
                     .after = places_[static_cast<size_t>(after)]});
  }
  return edges;
}

void CallOrder::BeginStep(Version step) {
  AcyclicGraph kept(places_.size());
  Graph old;
  for (const Graph* graph : {&now_, &old_}) {
    for (const NodeEdge& edge : graph->edges) {
      if (old.edges.size() >= kOldEdgesMax) break;
      if (old.known.contains(edge)) continue;
      if (kept.Add(static_cast<size_t>(edge.first),
                   static_cast<size_t>(edge.second))) {
        old.Add(edge);
      }
    }
  }
  old_ = std::move(old);
  now_ = {};
  step_ = step;
}

bool CallOrder::Learn(absl::Span<const std::vector<CallPlace>> sequences,
                      Version step) {
  if (step_ != step) BeginStep(step);
  bool learnt = false;
  for (const std::vector<CallPlace>& sequence : sequences) {
    for (size_t i = 1; i < sequence.size(); ++i) {
      const Node before = NodeOf(sequence[i - 1]);
      if (now_.Add({before, NodeOf(sequence[i])})) learnt = true;
    }
  }
  return learnt;
}

std::vector<bool> CallOrder::ReachedFrom(Node from,
                                         absl::Span<const Node> nodes,
                                         bool all) const {
  std::vector<bool> seen(places_.size());
  std::vector<Node> reached = {from};
  const auto follow = [&](const Graph& graph, Node node) {
    if (static_cast<size_t>(node) >= graph.next.size()) return;
    for (Node next : graph.next[static_cast<size_t>(node)]) {
      if (seen[static_cast<size_t>(next)]) continue;
      seen[static_cast<size_t>(next)] = true;
      reached.push_back(next);
    }
  };
  for (size_t i = 0; i < reached.size(); ++i) {
    const Node node = reached[i];
    follow(now_, node);
    if (all) follow(old_, node);
  }
  std::vector<bool> found;
  for (Node node : nodes) {
    found.push_back(node >= 0 && seen[static_cast<size_t>(node)]);
  }
  return found;
}

size_t CallOrder::First(absl::Span<const CallPlace> candidates) const {
  COHORT_CHECK(!candidates.empty(), "no call to choose from");
  const size_t count = candidates.size();
  if (count == 1 || places_.empty()) return 0;
  // -1: no member was ever seen there.
  std::vector<Node> nodes;
  for (const CallPlace& place : candidates) {
    const auto at = nodes_.find(place);
    nodes.push_back(at == nodes_.end() ? -1 : at->second);
  }
  // By the call before and the one after.
  std::vector<std::vector<bool>> now(count, std::vector<bool>(count));
  std::vector<std::vector<bool>> all = now;
  for (size_t i = 0; i < count; ++i) {
    if (nodes[i] < 0) continue;
    now[i] = ReachedFrom(nodes[i], nodes, /*all=*/false);
    all[i] = ReachedFrom(nodes[i], nodes, /*all=*/true);
  }
  const auto before = [&](size_t a, size_t b) {
    if (now[a][b] || now[b][a]) return now[a][b] && !now[b][a];
    return all[a][b] && !all[b][a];
  };
  for (size_t i = 0; i < count; ++i) {
    bool first = true;
    for (size_t other = 0; first && other < count; ++other) {
      first = other == i || !before(other, i);
    }
    if (first) return i;
  }
  return 0;
}

}  // namespace cohort
