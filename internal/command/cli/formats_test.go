package cli

import (
	"flag"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

func TestEveryTextAboutFormatsNamesAllOfThem(t *testing.T) {
	var dump, convert, tap strings.Builder
	require.ErrorIs(t, Dump(t.Context(), []string{"-h"}, &dump, &dump), flag.ErrHelp)
	require.ErrorIs(t, Convert(t.Context(), []string{"-h"}, &convert, &convert), flag.ErrHelp)
	require.ErrorIs(t, Tap(t.Context(), []string{"-h"}, &tap, &tap), flag.ErrHelp)
	_, err := capture.FormatOf("calls.txt")
	require.Error(t, err)
	texts := map[string]string{"dump": dump.String(), "convert": convert.String(), "tap": tap.String(), "the error": err.Error()}
	for _, o := range config.Options() {
		if o.Flag == "capture" {
			texts["serve"] = o.Usage
		}
	}
	assert.Len(t, texts, 5)
	for _, f := range capture.Formats {
		for where, text := range texts {
			assert.Contains(t, text, "."+string(f), where)
		}
	}
}
