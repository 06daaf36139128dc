package page

import (
	"encoding/json"
	"fmt"
	"strings"
)

// grafana returns the dashboard as Grafana imports it: packaging/monitoring/dashboard.json.
func grafana() ([]byte, error) {
	prometheus := object{"type": "prometheus", "uid": "${datasource}"}
	variable := func(name, query string) object {
		return object{"name": name, "type": "query", "datasource": prometheus, "query": query, "includeAll": true, "multi": true, "refresh": 2}
	}
	var panels []any
	for y, row := range Rows {
		for x, p := range row {
			width := 24 / len(row)
			panels = append(panels, object{
				"id": len(panels) + 1, "title": p.Title, "description": p.About, "type": p.kind(), "datasource": prometheus,
				"gridPos":     object{"h": 8, "w": width, "x": x * width, "y": y * 8},
				"fieldConfig": object{"defaults": p.defaults(), "overrides": []any{}},
				"options":     p.options(), "targets": p.targets(prometheus),
			})
		}
	}
	b, err := json.MarshalIndent(object{
		"title": "criproxy", "uid": "criproxy", "tags": []string{"criproxy", "cri"}, "schemaVersion": 39, "version": 1, "editable": true,
		"refresh": "30s", "time": object{"from": "now-3h", "to": "now"},
		"templating": object{"list": []any{
			object{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
			variable("job", "label_values(criproxy_build_info, job)"),
			variable("instance", `label_values(criproxy_build_info{job=~"$job"}, instance)`),
		}},
		"panels": panels,
	}, "", " ")
	return append(b, '\n'), err
}

type object map[string]any

func (p Panel) kind() string {
	if p.Words != nil {
		return "stat"
	}
	return "timeseries"
}

func (p Panel) defaults() object {
	d := object{"unit": p.Unit, "min": 0}
	if p.Words != nil {
		words := object{}
		for i, word := range p.Words {
			words[fmt.Sprint(i)] = object{"text": word, "color": []string{"red", "green", "orange"}[i]}
		}
		d["mappings"] = []any{object{"type": "value", "options": words}}
	}
	return d
}

func (p Panel) options() object {
	if p.Words != nil {
		return object{"colorMode": "background"}
	}
	return object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi"}}
}

func (p Panel) targets(prometheus object) (all []any) {
	for i, q := range p.Queries {
		all = append(all, object{"refId": string(rune('A' + i)), "expr": q.promQL(), "legendFormat": q.Legend, "datasource": prometheus})
	}
	return all
}

// promQL is the query in Prometheus's language, of the instances that are chosen in Grafana.
func (q Query) promQL() string {
	chosen := []string{`instance=~"$instance"`}
	if !strings.HasPrefix(q.Metric, "criproxy_") { // which other programs have as well
		chosen = append(chosen, `job=~"$job"`)
	}
	for _, l := range q.Where {
		if l.IsNot != nil {
			chosen = append(chosen, fmt.Sprintf("%s!~%q", l.Name, strings.Join(l.IsNot, "|")))
		} else {
			chosen = append(chosen, fmt.Sprintf("%s=%q", l.Name, l.Is))
		}
	}
	series := func(metric string) string { return metric + "{" + strings.Join(chosen, ",") + "}" }
	rate := func(metric string) string { return "rate(" + series(metric) + "[$__rate_interval])" }
	if q.Quantile > 0 {
		return fmt.Sprintf("histogram_quantile(%g, sum by (%s, le) (%s))", q.Quantile, strings.Join(q.By, ", "), rate(q.Metric+"_bucket"))
	}
	expr := series(q.Metric)
	if q.Plus != "" {
		expr += " + " + series(q.Plus)
	}
	if q.Rate {
		expr = rate(q.Metric)
	}
	switch {
	case q.By == nil:
		return expr
	case len(q.By) == 0:
		return "sum(" + expr + ")"
	}
	return fmt.Sprintf("sum by (%s) (%s)", strings.Join(q.By, ", "), expr)
}
