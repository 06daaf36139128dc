package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// demoCapture returns the files, in each format, with the calls of the demo.
func demoCapture(t *testing.T) map[capture.Format]string {
	t.Helper()
	dir := shortDir(t)
	out, _ := launched(t, []string{"TMPDIR=" + dir}, "demo")
	out.waitFor(t, "The demo runs")
	sockets, err := filepath.Glob(filepath.Join(dir, "*", "criproxy.admin.sock"))
	require.NoError(t, err)
	require.Len(t, sockets, 1)
	files := map[capture.Format]string{capture.JSONL: filepath.Join(dir, "a.jsonl")}
	require.NoError(t, run(t.Context(), []string{"dump", "-admin", sockets[0], files[capture.JSONL]}, io.Discard, io.Discard))
	for _, f := range []capture.Format{capture.PCAPNG, capture.Binlog} {
		files[f] = filepath.Join(dir, "a."+string(f))
		require.NoError(t, run(t.Context(), []string{"convert", files[capture.JSONL], files[f]}, io.Discard, io.Discard))
	}
	return files
}

// messagesOf returns the messages of one of our captures, in order for each leg's interface.
func messagesOf(t *testing.T, path string) (all [][]byte, methods int) {
	t.Helper()
	r, err := capture.Open(path)
	require.NoError(t, err)
	defer r.Close()
	for {
		var ev capture.Event
		err := r.Next(&ev)
		if errors.Is(err, io.EOF) {
			return all, methods
		}
		require.NoError(t, err)
		switch ev.Kind {
		case capture.Start:
			methods++
		case capture.Request, capture.Reply:
			all = append(all, ev.Payload)
		}
	}
}

// flowID is one direction of a connection.
type flowID struct{ network, transport gopacket.Flow }

// A second parser, from other libraries: gopacket for blocks and packets,
// golang.org/x/net/http2 for their content.
func TestThePcapngHoldsTheSameMessagesForAnotherParser(t *testing.T) {
	t.Parallel()
	files := demoCapture(t)
	want, starts := messagesOf(t, files[capture.JSONL])
	require.Greater(t, len(want), 50)

	file, err := os.Open(files[capture.PCAPNG])
	require.NoError(t, err)
	defer file.Close()
	r, err := pcapgo.NewNgReader(file, pcapgo.DefaultNgReaderOptions)
	require.NoError(t, err)
	flows := map[flowID]*bytes.Buffer{}
	var order []flowID
	next := map[flowID]uint32{}
	for {
		data, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		packet := gopacket.NewPacket(data, layers.LayerTypeIPv4, gopacket.Default)
		require.Nil(t, packet.ErrorLayer())
		tcp := packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
		require.NoError(t, tcp.SetNetworkLayerForChecksum(packet.NetworkLayer()))
		err, wrong := packet.VerifyChecksums()
		require.NoError(t, err)
		require.Empty(t, wrong)
		id := flowID{packet.NetworkLayer().NetworkFlow(), packet.TransportLayer().TransportFlow()}
		if flows[id] == nil {
			flows[id] = &bytes.Buffer{}
			order = append(order, id)
			require.True(t, tcp.SYN)
			next[id] = tcp.Seq + 1
			continue
		}
		require.Equal(t, next[id], tcp.Seq, "nothing is missing, in %v", id)
		next[id] += uint32(len(tcp.Payload))
		flows[id].Write(tcp.Payload)
		iface, err := r.Interface(info.InterfaceIndex)
		require.NoError(t, err)
		require.NotEmpty(t, iface.Name)
	}
	assert.Equal(t, 3, r.NInterfaces(), "clients, and two backends")

	var got [][]byte
	paths := 0
	for _, id := range order {
		b := flows[id].Bytes()
		b = bytes.TrimPrefix(b, []byte(http2.ClientPreface))
		f := http2.NewFramer(nil, bytes.NewReader(b))
		f.SetMaxReadFrameSize(1<<24 - 1)
		f.ReadMetaHeaders = hpack.NewDecoder(0, nil)
		bodies := map[uint32][]byte{}
		for {
			frame, err := f.ReadFrame()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			switch frame := frame.(type) {
			case *http2.MetaHeadersFrame:
				if frame.PseudoValue("path") != "" {
					paths++
				}
			case *http2.DataFrame:
				body := append(bodies[frame.StreamID], frame.Data()...)
				for len(body) >= 5 && len(body) >= 5+int(binary.BigEndian.Uint32(body[1:])) {
					n := 5 + int(binary.BigEndian.Uint32(body[1:]))
					got = append(got, bytes.Clone(body[5:n]))
					body = body[n:]
				}
				bodies[frame.StreamID] = body
			}
		}
		for stream, body := range bodies {
			assert.Empty(t, body, "rest of stream %d", stream)
		}
	}
	assert.Equal(t, starts, paths)
	assert.ElementsMatch(t, texts(want), texts(got))
}

func texts(all [][]byte) []string {
	s := make([]string, len(all))
	for i, b := range all {
		s[i] = string(b)
	}
	return s
}

// tshark returns the output of tshark. Without tshark the test is skipped.
func tshark(t *testing.T, env []string, args ...string) string {
	t.Helper()
	return wireshark(t, "tshark", env, args...)
}

// wireshark returns the output of a program that belongs to tshark. Without it the test is skipped.
func wireshark(t *testing.T, program string, env []string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		untested.Skip(t, "whether Wireshark opens our files: apt-get install tshark")
	}
	cmd := bounded.Command(t, path, args...)
	cmd.Env = append(os.Environ(), env...)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	require.NoError(t, err, "%s %s: %s", program, strings.Join(args, " "), errOut.String())
	return string(out)
}

func TestWiresharkOpensThePcapngWithNoSettings(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	file := demoCapture(t)[capture.PCAPNG]
	_, starts := messagesOf(t, file)
	home := []string{"HOME=" + t.TempDir()}
	calls := strings.Fields(tshark(t, home, "-r", file, "-Y", "http2.headers.path", "-T", "fields", "-e", "http2.headers.path"))
	assert.Len(t, calls, starts)
	assert.Contains(t, calls, "/runtime.v1.RuntimeService/RunPodSandbox")
	assert.NotEmpty(t, tshark(t, home, "-r", file, "-Y", "grpc.message_length > 0"))
	assert.Empty(t, tshark(t, home, "-r", file, "-Y", "_ws.malformed || tcp.analysis.flags || tcp.checksum.status == Bad", "-o", "tcp.check_checksum:TRUE"))
	status := tshark(t, home, "-r", file, "-Y", `ip.src == 192.0.2.1 && http2.header.name == "grpc-status" && http2.header.value == "5"`) // only replies to the client what has just gone
	assert.Equal(t, 1, strings.Count(status, "\n"), "NotFound: %s", status)
	assert.NotEmpty(t, tshark(t, home, "-r", file, "-Y", `frame.comment contains "backend=\"beta.io\""`))
	assert.NotEmpty(t, tshark(t, home, "-r", file, "-Y", `frame.interface_name contains "beta.io"`))
	assert.NotEmpty(t, tshark(t, home, "-r", file, "-Y", `frame.comment contains "rewrite container_id:"`))
}

func TestWiresharkFiltersByFieldsWithOurProfile(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	file := demoCapture(t)[capture.PCAPNG]
	config := t.TempDir()
	require.NoError(t, run(t.Context(), []string{"wireshark-profile", filepath.Join(config, "profiles", "criproxy")}, io.Discard, io.Discard))
	env := []string{"WIRESHARK_CONFIG_DIR=" + config}
	found := tshark(t, env, "-C", "criproxy", "-r", file, "-Y", `pbf.runtime.v1.ImageSpec.image == "images/cirros:1"`)
	assert.Contains(t, found, "runtime.v1.PullImageRequest")
	assert.Contains(t, tshark(t, env, "-C", "criproxy", "-r", file, "-Y", `pbf.runtime.v1.PodSandboxMetadata.name == "vm"`), "RunPodSandbox")
	assert.Empty(t, tshark(t, env, "-C", "criproxy", "-r", file, "-Y", `pbf.runtime.v1.ImageSpec.image == "nothing"`))
}

// A change is a block of its own, which is no packet. editcap, and with it Wireshark when it saves, refused the file: it had
// the names of hosts before the interfaces.
func TestWiresharkSkipsAConditionsBlock(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	p := startedProcess(t)
	p.runPod("web", "beta.io")
	p.restartRuntime(true, false)
	p.restartRuntime(false, true)
	file := filepath.Join(p.dir, "calls.pcapng")
	_, err := p.ask("dump", file)
	require.NoError(t, err)
	var said []string
	r, err := capture.Open(file)
	require.NoError(t, err)
	defer r.Close()
	for ev := (capture.Event{}); r.Next(&ev) == nil; {
		if ev.Kind == capture.Changed {
			said = append(said, ev.Change.String())
		}
	}
	require.Greater(t, len(said), 4, "serves, two runtimes are up, one is gone and up again: %v", said)
	home := []string{"HOME=" + t.TempDir()}
	assert.Empty(t, tshark(t, home, "-r", file, "-Y", "_ws.malformed || tcp.analysis.flags || tcp.checksum.status == Bad", "-o", "tcp.check_checksum:TRUE"))
	assert.Empty(t, tshark(t, home, "-r", file, "-Y", `frame.comment contains "kind=change"`), "it is no packet")

	// As a file of blocks, it is there with its sentence, and well formed.
	blocks := func(args ...string) string {
		t.Helper()
		return tshark(t, home, append([]string{"-r", file, "-X", "read_format:MIME Files Format"}, args...)...)
	}
	assert.Empty(t, blocks("-Y", "_ws.malformed || _ws.expert"))
	comments := blocks("-T", "fields", "-e", "pcapng.options.option.data.comment")
	for _, one := range said {
		assert.Contains(t, comments, one)
	}
	assert.Equal(t, len(said), strings.Count(comments, "kind=change "))

	again := filepath.Join(p.dir, "again.pcapng")
	wireshark(t, "editcap", home, file, again)
	want, _ := messagesOf(t, file)
	got, _ := messagesOf(t, again)
	assert.Equal(t, texts(want), texts(got))
}
