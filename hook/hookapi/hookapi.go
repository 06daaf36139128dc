// Package hookapi is the protocol between criproxy and a plugin: generated Go code for koord.proto,
// which has the messages and the service of KoordRuntimeProxy, and for more.proto, which adds a
// service with further methods. Run go test ./hook/hookapi -update to generate the code again.
//
// A plugin in Go is easier to write with package hook/plugin.
package hookapi

import "github.com/criproxy/criproxy/codec"

// Schema returns the schema of the services in koord.proto and more.proto.
func Schema() *codec.Schema {
	return codec.NewSchema(File_hook_hookapi_koord_proto, File_hook_hookapi_more_proto)
}
