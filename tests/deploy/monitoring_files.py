"""The queries of deploy/prometheus and deploy/grafana."""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

try:
    import yaml
except ImportError:
    yaml = None

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARDS = DEPLOY / "grafana/dashboards"
RULE_FILES = ("recording.yml", "alerts.yml")

# Provided by Prometheus itself.
BUILT_IN = frozenset({"up", "ALERTS"})

STRING = re.compile(r'"(?:\\.|[^"\\])*"')
SELECTOR = re.compile(r"([A-Za-z_:][\w:]*)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|=|!~|!=)\s*"([^"]*)"')
LABEL_LIST = re.compile(
    r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
# Neither part of a number or a variable nor a function's name.
NAME = re.compile(r"(?<![\w:.$])([A-Za-z_:][\w:]*)(?!\w)(?!\s*\()")
KEYWORDS = frozenset({"and", "or", "unless", "bool", "by", "without", "on",
                      "ignoring", "group_left", "group_right", "offset",
                      "inf", "nan"})
DURATION = re.compile(r"\boffset\s+\S+")


def metric_names(query: str) -> set[str]:
    """Returns the metrics and recorded series that a PromQL query reads."""
    text = STRING.sub('""', query)
    for part in (r"\{[^}]*\}", r"\[[^\]]*\]", DURATION, LABEL_LIST):
        text = re.sub(part, " ", text)
    # A function is followed by "(", possibly behind `by (...)`, removed above.
    return {name for name in NAME.findall(text)
            if name.lower() not in KEYWORDS}


class Matcher(NamedTuple):
    """One condition on a label of a metric."""
    metric: str
    label: str
    operator: str
    value: str


def matchers(query: str) -> Iterator[Matcher]:
    """Yields every condition within braces."""
    for metric, inside in SELECTOR.findall(query):
        for label, operator, value in MATCHER.findall(inside):
            yield Matcher(metric, label, operator, value)


def _rules() -> Iterator[dict]:
    for file in RULE_FILES:
        text = (PROMETHEUS / "rules" / file).read_text(encoding="utf-8")
        for group in yaml.safe_load(text)["groups"]:
            yield from group["rules"]


def recorded() -> dict[str, str]:
    """Returns the query of each recorded series, by its name."""
    return {rule["record"]: rule["expr"] for rule in _rules()
            if "record" in rule}


def alerts() -> dict[str, dict]:
    """Returns the alert rules by name."""
    return {rule["alert"]: rule for rule in _rules() if "alert" in rule}


def dashboards() -> dict[str, dict]:
    """Returns the dashboards by file name."""
    return {path.name: json.loads(path.read_text(encoding="utf-8"))
            for path in sorted(DASHBOARDS.glob("*.json"))}


def panels(dashboard: dict) -> Iterator[dict]:
    """Yields panels that show data; rows are only headings."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from (inner for inner in panel.get("panels", ()))


def dashboard_queries(dashboard: dict) -> Iterator[tuple[str, str]]:
    """Yields (where, query), of panels, annotations and variables."""
    title = dashboard["title"]
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield f"{title} / {panel['title']}", target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        if "expr" in annotation:
            yield f"{title} / {annotation['name']}", annotation["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            series = re.fullmatch(r"label_values\((.*), \w+\)",
                                  variable["query"]["query"])
            yield f"{title} / ${variable['name']}", series.group(1)


def instantiated(query: str) -> str:
    """Returns a dashboard's query as Grafana would send it."""
    for variable, value in (("$__rate_interval", "5m"), ("$instance", ".+"),
                            ("$worker", ".+"), ("$run", ".+")):
        query = query.replace(variable, value)
    return query


def all_queries() -> Iterator[tuple[str, str]]:
    """Yields (where, query) of every rule and dashboard."""
    yield from recorded().items()
    for name, rule in alerts().items():
        yield name, rule["expr"]
    for dashboard in dashboards().values():
        yield from dashboard_queries(dashboard)
