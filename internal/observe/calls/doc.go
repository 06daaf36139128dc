// Package calls shows recorded calls to people: it assembles calls from events, filters them, and
// prints them.
//
//	a := calls.NewAssembler(schema, names)
//	p := calls.Printer{Schema: schema, Out: os.Stdout}
//	for reader.Next(&event) == nil {
//		if call, what := a.Add(&event); what == calls.Done && filter.Match(call) {
//			p.Line(call)
//		}
//	}
//
// It works alike for live events and for recordings in files.
package calls
