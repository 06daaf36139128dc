// Package inspect shows recorded calls to people: it assembles calls from events, filters them, and
// prints them.
//
//	a := inspect.NewAssembler(schema, names)
//	p := inspect.Printer{Schema: schema, Out: os.Stdout}
//	for reader.Next(&event) == nil {
//		if call, what := a.Add(&event); what == inspect.Done && filter.Match(call) {
//			p.Line(call)
//		}
//	}
//
// It works alike for live events and for recordings in files.
package inspect
