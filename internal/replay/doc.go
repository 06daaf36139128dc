// Package replay plays recorded calls again: as the client, against a server that may
// be another one ([Run]), or as the server, for clients that may be others ([Fixture]).
//
//	calls, err := replay.Load(reader, "")
//	sum, err := replay.Run(ctx, replay.Config{Calls: calls, Conn: cc, Schema: schema})
package replay
