// Package inspect shows recorded calls to people: it puts the events of a call
// together, filters, and prints them.
//
//	a := inspect.NewAssembler(schema, names)
//	p := inspect.Printer{Schema: schema, Out: os.Stdout}
//	for reader.Next(&event) == nil {
//		if call, what := a.Add(&event); what == inspect.Done && filter.Match(call) {
//			p.Line(call)
//		}
//	}
//
// It is the same for calls that are under way and for those on file.
package inspect
