// Package drift finds parts of an API that its profile does not know: methods and fields of a newer
// version, and fields that look like ids but have no rule.
//
//	w, err := drift.New(drift.Config{Profile: p, Schema: s, Backends: names, Found: log})
//	if err != nil {
//		return err // a mistake of the profile
//	}
//	cfg.Tracer = w // of a director.Config
//
// A [Watch] examines some calls of each method, on the client's leg, and changes nothing.
// [Uncovered] needs no calls: it lists the fields of the descriptors that look like ids and
// have no rule.
package drift
