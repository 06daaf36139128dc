// Package why finds out from recorded calls what is wrong with a node. A [Look] takes the events of a recording, and has
// a [Report] of what the rules find in them:
//
//	look := why.New(schema, names)
//	for reader.Next(&event) == nil {
//		look.Add(&event)
//	}
//	report := look.Report(why.Options{})
//
// Each rule has its words and its function in one place: what kubelet says when it happens, what in the calls shows
// it, what it is not, and what to do. rules.go lists them. look.go makes short records of the calls, of which it
// decodes only the fields that a rule reads. causes.go has what the answers of runtimes mean. A rule states what the
// calls show and no more: a finding that is wrong costs more than one that is missing.
package why
