// Package figures has no code, only tests: what a kubelet says of the pods of two containerds behind criproxy, in
// /stats/summary, /metrics/cadvisor and /metrics/resource, with its own settings and with those that docs/usage.md advises.
package figures
