// Package fleet tests what a store of logs knows of several nodes: criproxy sends its calls to a real collector of
// OpenTelemetry and to a real VictoriaLogs, and the queries of docs/fleet.md find the troubles that the nodes had.
//
// It is a module of its own, so that criproxy does not depend on the store.
package fleet
