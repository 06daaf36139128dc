package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/recorded"
)

// anHour returns what a process leaves that has recorded an hour of a node with 100 pods: three minutes of a real kubelet,
// over and over.
func anHour(t testing.TB) []byte {
	_, all := recorded.Read(t, "../../internal/server/testdata/node100.blocks")
	rec := capture.NewRecorder(capture.Config{Bytes: 16 << 20, Schema: criadapter.Schema()})
	recorded.UntilNow(all, time.Hour, rec.Add)
	require.Greater(t, time.Since(rec.Reach().All), time.Hour, "of the recorder's memory")
	data, _ := rec.Snapshot(&capture.FileHeader{Version: 1, Program: "test"})
	return data
}

// A firstRow notes when it is given a text.
type firstRow struct {
	text string
	at   time.Time
	has  context.CancelFunc
}

func (f *firstRow) Write(b []byte) (int, error) {
	if f.at.IsZero() && bytes.Contains(b, []byte(f.text)) {
		f.at = time.Now()
		f.has()
	}
	return len(b), nil
}

// BenchmarkHour measures how long commands take to the first call that they show of an hour.
func BenchmarkHour(b *testing.B) {
	p := newProcess(b)
	state := filepath.Join(p.dir, "state")
	require.NoError(b, os.Mkdir(state, 0o700))
	require.NoError(b, os.WriteFile(filepath.Join(state, fmt.Sprintf("recorder-%d.blocks", 1<<22+1)), anHour(b), 0o600))
	p.launch()
	for _, command := range []string{"tail -since 1h", "tail -since 1h -method ContainerStatus", "tail -since 10m", "tail -last 100", "tail -last 100 -pod pod051*", "dump", "dump -since 1h", "dump -since 10m", "why -since 1h"} {
		b.Run(command, func(b *testing.B) {
			var took time.Duration
			for b.Loop() {
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				out, began := &firstRow{text: "kubelet", has: cancel}, time.Now()
				err := run(ctx, append(strings.Fields(command), "-admin", config.AdminBeside(p.front)), out, io.Discard)
				cancel()
				require.False(b, out.at.IsZero(), "%v", err)
				took += out.at.Sub(began)
			}
			b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "ms-to-first")
			b.ReportMetric(0, "ns/op")
		})
	}
	b.Run("ui", func(b *testing.B) {
		var rows, all time.Duration
		for b.Loop() {
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			said, out := io.Pipe()
			began := time.Now()
			go func() {
				_ = out.CloseWithError(run(ctx, []string{"ui", "-admin", config.AdminBeside(p.front)}, out, io.Discard))
			}()
			lines := bufio.NewScanner(said)
			for lines.Scan() && !strings.Contains(lines.Text(), "token=") {
			}
			jar, _ := cookiejar.New(nil)
			browser := http.Client{Jar: jar, Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
			page, err := browser.Get(strings.TrimSpace(lines.Text()))
			require.NoError(b, err)
			require.NoError(b, page.Body.Close())
			stream, err := browser.Get(page.Request.URL.String() + "stream")
			require.NoError(b, err)
			first := time.Time{}
			for events, line := bufio.NewReader(stream.Body), ""; !strings.Contains(line, `"caughtUp":true`); {
				line, err = events.ReadString('\n')
				require.NoError(b, err)
				if first.IsZero() && strings.HasPrefix(line, "event: calls") {
					first = time.Now()
				}
			}
			rows += first.Sub(began)
			all += time.Since(began)
			require.NoError(b, stream.Body.Close())
			cancel()
			_, _ = io.Copy(io.Discard, said)
		}
		b.ReportMetric(float64(all.Microseconds())/1000/float64(b.N), "ms-to-all")
		b.ReportMetric(float64(rows.Microseconds())/1000/float64(b.N), "ms-to-first")
		b.ReportMetric(0, "ns/op")
	})
}
