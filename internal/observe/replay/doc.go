// Package replay plays recorded calls again: as the client, to any server ([Run]), or as the server, for
// any client ([Fixture]).
//
//	calls, err := replay.Load(reader, "")
//	sum, err := replay.Run(ctx, replay.Config{Calls: calls, Conn: cc, Schema: schema, ...})
package replay
