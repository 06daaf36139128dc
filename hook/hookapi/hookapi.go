// Package hookapi is the protocol between criproxy and a plugin, as Go: the messages
// of koord.proto, which are KoordRuntimeProxy's, and the services of koord.proto and
// more.proto. `go test ./hook/hookapi -update` makes the code anew.
//
// Plugins in Go are easier to write with package hook/plugin.
package hookapi

import "github.com/criproxy/criproxy/codec"

// Schema returns the schema of both services.
func Schema() *codec.Schema {
	return codec.NewSchema(File_hook_hookapi_koord_proto, File_hook_hookapi_more_proto)
}
