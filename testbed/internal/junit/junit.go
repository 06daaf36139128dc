// Package junit reads the reports of Ginkgo's suites.
package junit

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// The outcomes of a spec.
const (
	Passed  = "passed"
	Failed  = "failed"
	Skipped = "skipped"
)

// Outcomes are the outcomes of the specs of a run, with reasons.
type Outcomes map[string]Outcome // :: spec → …

type Outcome struct{ State, Why string }

// String returns the state, and "missing" for a spec that did not run.
func (o Outcome) String() string { return cmp.Or(o.State, "missing") }

// Count returns how many specs ended in a state.
func (o Outcomes) Count(state string) (n int) {
	for _, spec := range o {
		if spec.State == state {
			n++
		}
	}
	return n
}

// PassedAndNot returns the specs that passed here but not there, sorted.
func (o Outcomes) PassedAndNot(there Outcomes) (specs []string) {
	for _, spec := range slices.Sorted(maps.Keys(o)) {
		if o[spec].State == Passed && there[spec].State != Passed {
			specs = append(specs, spec)
		}
	}
	return specs
}

// Focus returns a regular expression for Ginkgo that matches only these specs. Ginkgo matches it against the name of the
// suite and the text of a spec, without the labels that follow the names in a report.
func Focus(specs []string) string {
	var texts []string
	for _, spec := range specs {
		text := strings.TrimPrefix(spec, "[It] ")
		if i := strings.LastIndex(text, " ["); i >= 0 {
			text = text[:i]
		}
		texts = append(texts, regexp.QuoteMeta(text)+"$")
	}
	return strings.Join(texts, "|")
}

// Read returns the outcomes in a report, without specs that were out of focus.
func Read(file string) (Outcomes, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var report struct {
		Suites []struct {
			Cases []struct {
				Name    string `xml:"name,attr"`
				Status  string `xml:"status,attr"`
				Failure struct {
					Message string `xml:"message,attr"`
				} `xml:"failure"`
				Skipped struct {
					Message string `xml:"message,attr"`
				} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(data, &report); err != nil {
		return nil, fmt.Errorf("testbed: reading %s: %w", file, err)
	}
	o := Outcomes{}
	for _, suite := range report.Suites {
		for _, spec := range suite.Cases {
			switch {
			case !strings.HasPrefix(spec.Name, "[It] "):
				// Set-up and clean-up of the suite.
			case spec.Status == Passed:
				o[spec.Name] = Outcome{State: Passed}
			case spec.Status == Skipped && spec.Skipped.Message == "skipped":
				// Out of focus.
			case spec.Status == Skipped:
				o[spec.Name] = Outcome{Skipped, spec.Skipped.Message}
			default:
				o[spec.Name] = Outcome{Failed, spec.Failure.Message}
			}
		}
	}
	return o, nil
}
