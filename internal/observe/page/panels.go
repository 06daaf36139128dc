// This file defines the panels that show criproxy's metrics, and their queries.
//
// The panels are data. [Grafana] makes packaging/monitoring/dashboard.json of them, and a [Meter] evaluates them
// for `criproxy ui`. So both have the same panels with the same texts.

package page

// A Panel shows some of the metrics.
type Panel struct {
	Title   string   `json:"title"`
	About   string   `json:"about"`           // what it means, and what to look for
	Unit    string   `json:"unit"`            // as Grafana calls it
	Words   []string `json:"words,omitempty"` // :: value → its word. A panel with words shows states: the second is good, the first is the worst
	Queries []Query  `json:"-"`
}

// goneUp are the words of most states.
var goneUp = []string{"gone", "up"}

// Rows are the rows of panels, from top to bottom, as in Grafana.
var Rows = [][]Panel{
	{
		{
			Title: "Ready", Unit: "none", Words: goneUp,
			About:   "1 while criproxy can answer calls: the primary is up, and clients can connect.",
			Queries: []Query{{Metric: "criproxy_ready", Legend: "{{instance}}"}},
		},
		{
			Title: "Runtimes", Unit: "none", Words: []string{"gone", "up", "slow"},
			About:   "0 while a runtime is gone, 1 while it is up, 2 while it is slow.",
			Queries: []Query{{Metric: "criproxy_backend_up", Plus: "criproxy_backend_slow", Legend: "{{instance}} {{backend}}"}},
		},
		{
			Title: "Configuration", Unit: "none", Words: []string{"HAS MISTAKES", "loaded"},
			About:   "0 if the file has mistakes: the previous configuration is in use.",
			Queries: []Query{{Metric: "criproxy_config_last_reload_successful", Legend: "{{instance}}"}},
		},
		{
			Title: "Age of what lists show", Unit: "s",
			About:   "The age of a runtime's pods in lists. 0 while the runtime is up. While it grows, kubelet does not see containers die there, and restarts none.",
			Queries: []Query{{Metric: "criproxy_backend_last_known_age_seconds", Legend: "{{instance}} {{backend}}"}},
		},
	},
	{
		{
			Title: "Calls of clients", Unit: "reqps",
			About:   "Calls that have ended, by method: mostly kubelet, which lists every second.",
			Queries: []Query{{Metric: "criproxy_calls_total", Rate: true, By: []string{"method"}, Legend: "{{method}}"}},
		},
		{
			Title: "Failed calls of clients", Unit: "reqps",
			About:   "Calls that ended with an error. criproxy status shows the latest errors, with their texts.",
			Queries: []Query{{Metric: "criproxy_calls_total", Where: failed, Rate: true, By: []string{"method", "code"}, Legend: "{{method}} {{code}}"}},
		},
		{
			Title: "Calls under way", Unit: "none",
			About: "Calls of clients, and calls to runtimes, that have not ended. A line that stays up means that a runtime hangs.",
			Queries: []Query{
				{Metric: "criproxy_calls_in_flight", By: []string{"method"}, Legend: "{{method}}"},
				{Metric: "criproxy_backend_calls_in_flight", By: []string{"backend"}, Legend: "to {{backend}}"},
			},
		},
	},
	{
		{
			Title: "Duration for clients, p99", Unit: "s",
			About:   "How long clients wait, criproxy included.",
			Queries: []Query{{Metric: "criproxy_call_duration_seconds", Quantile: 0.99, By: []string{"method"}, Legend: "{{method}}"}},
		},
		{
			Title: "Duration at the runtimes, p99", Unit: "s",
			About:   "How long runtimes take. The difference from the previous panel is the time in criproxy.",
			Queries: []Query{{Metric: "criproxy_backend_call_duration_seconds", Quantile: 0.99, By: []string{"backend", "method"}, Legend: "{{backend}} {{method}}"}},
		},
		{
			Title: "Failed calls to runtimes", Unit: "reqps",
			About:   "Errors of runtimes, including those of criproxy's own calls.",
			Queries: []Query{{Metric: "criproxy_backend_calls_total", Where: failed, Rate: true, By: []string{"backend", "method", "code"}, Legend: "{{backend}} {{method}} {{code}}"}},
		},
	},
	{
		{
			Title: "Bytes of clients", Unit: "Bps",
			About: "Messages from and to clients.",
			Queries: []Query{
				{Metric: "criproxy_request_bytes_total", Rate: true, By: []string{}, Legend: "requests"},
				{Metric: "criproxy_reply_bytes_total", Rate: true, By: []string{}, Legend: "replies"},
			},
		},
		{
			Title: "Bytes of runtimes", Unit: "Bps",
			About: "Messages to and from runtimes, including those of criproxy's own calls.",
			Queries: []Query{
				{Metric: "criproxy_backend_request_bytes_total", Rate: true, By: []string{"backend"}, Legend: "{{backend}} requests"},
				{Metric: "criproxy_backend_reply_bytes_total", Rate: true, By: []string{"backend"}, Legend: "{{backend}} replies"},
			},
		},
		{
			Title: "Refused by access lists, missed by readers", Unit: "ops",
			About: "Calls that an access list refused, and events that a capture, the log or tail missed because it was too slow.",
			Queries: []Query{
				{Metric: "criproxy_refused_calls_total", Rate: true, By: []string{"listener"}, Legend: "refused at {{listener}}"},
				{Metric: "criproxy_capture_missed_events_total", Rate: true, By: []string{}, Legend: "events missed"},
			},
		},
	},
	{
		{
			Title: "Plugins", Unit: "none", Words: goneUp,
			About:   "1 while a plugin is ready.",
			Queries: []Query{{Metric: "criproxy_hook_plugin_up", Legend: "{{instance}} {{plugin}}"}},
		},
		{
			Title: "Questions to plugins", Unit: "reqps",
			About: "How often criproxy asks plugins, and how often they fail to answer.",
			Queries: []Query{
				{Metric: "criproxy_hook_calls_total", Rate: true, By: []string{"plugin", "point"}, Legend: "{{plugin}} {{point}}"},
				{Metric: "criproxy_hook_failures_total", Rate: true, By: []string{"plugin", "point"}, Legend: "failed: {{plugin}} {{point}}"},
				{Metric: "criproxy_hook_refusals_total", Rate: true, By: []string{"plugin", "point"}, Legend: "refused: {{plugin}} {{point}}"},
			},
		},
		{
			Title: "Plugins' answers, p99", Unit: "s",
			About:   "How long pods and containers wait for a plugin.",
			Queries: []Query{{Metric: "criproxy_hook_latency_seconds", Where: []Label{{Name: "quantile", Is: "0.99"}}, Legend: "{{plugin}} {{point}}"}},
		},
	},
	{
		{
			Title: "Processor", Unit: "percentunit",
			About:   "CPUs that criproxy uses.",
			Queries: []Query{{Metric: "process_cpu_seconds_total", Rate: true, Legend: "{{instance}}"}},
		},
		{
			Title: "Memory", Unit: "bytes",
			About:   "Memory that criproxy uses.",
			Queries: []Query{{Metric: "process_resident_memory_bytes", Legend: "{{instance}}"}},
		},
		{
			Title: "Goroutines", Unit: "none",
			About:   "A line that only grows means a bug in criproxy: please report it.",
			Queries: []Query{{Metric: "go_goroutines", Legend: "{{instance}}"}},
		},
	},
	{
		{
			Title: "Pods and containers", Unit: "none",
			About:   "What each runtime has, as far as criproxy knows, even while the runtime is gone.",
			Queries: []Query{{Metric: "criproxy_backend_items", Legend: "{{backend}} {{kind}}"}},
		},
		{
			Title: "Answers from memory", Unit: "reqps",
			About:   "Lists and statuses that criproxy answered from memory, for runtimes that are slow or gone.",
			Queries: []Query{{Metric: "criproxy_backend_remembered_answers_total", Rate: true, By: []string{"backend", "method"}, Legend: "{{backend}} {{method}}"}},
		},
	},
}

// failed excludes codes that are not failures: a client that leaves ends its streams with Canceled.
var failed = []Label{{Name: "code", IsNot: []string{"OK", "Canceled"}}}

// Panels returns the panels of all rows.
func Panels() []Panel {
	var all []Panel
	for _, row := range Rows {
		all = append(all, row...)
	}
	return all
}
