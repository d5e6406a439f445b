package recording

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/accessproxy/recording/frames"
)

const (
	maxStatus = 4 << 10 // bytes of a Status that are kept
	maxResize = 256     // bytes of a resize message
)

// sizes counts and hashes the streams of a command without a terminal, and counts those of forwarded ports.
type sizes struct {
	hashInput bool
	total     map[string]*total     // by stream
	ports     map[uint32]*portTotal // by SPDY stream
	unflushed int64                 // bytes since the last flush
	flushes   int
}

type total struct {
	bytes   int64
	sum     hash.Hash // nil if the stream is only counted
	changed bool
}

// A portTotal counts the bytes of one forwarded connection.
type portTotal struct {
	name  string
	bytes [2]int64 // from each side
}

func newSizes(hashInput bool) *sizes {
	return &sizes{hashInput: hashInput, total: map[string]*total{}, ports: map[uint32]*portTotal{}}
}

// add counts bytes. It reports whether they are part of the recording, which unknown channels are not.
func (z *sizes) add(e frames.Event) bool {
	var name string
	hashed := false
	switch {
	case e.Channel == frames.Data:
		name = "forwarded from the " + e.From.String()
		if p := z.ports[e.Stream]; p != nil {
			p.bytes[e.From] += int64(len(e.Data))
		}
	case e.From == frames.Server && (e.Channel == frames.Stdout || e.Channel == frames.Stderr):
		name, hashed = e.Channel.String(), true
	case e.From == frames.Client && e.Channel == frames.Stdin:
		name, hashed = e.Channel.String(), z.hashInput
	default:
		return false
	}
	t := z.total[name]
	if t == nil {
		t = &total{}
		if hashed {
			t.sum = sha256.New()
		}
		z.total[name] = t
	}
	t.changed = true
	t.bytes += int64(len(e.Data))
	if t.sum != nil {
		t.sum.Write(e.Data)
	}
	z.unflushed += int64(len(e.Data))
	return true
}

// flush returns the markers of the streams that have changed.
func (z *sizes) flush() (texts []string) {
	for _, name := range slices.Sorted(maps.Keys(z.total)) {
		if t := z.total[name]; t.changed {
			t.changed = false
			texts = append(texts, t.text(name))
		}
	}
	z.unflushed = 0
	z.flushes++
	return texts
}

func (t *total) text(name string) string {
	if t.sum == nil {
		return fmt.Sprintf("%s: %d bytes", name, t.bytes)
	}
	return fmt.Sprintf("%s: %d bytes, SHA-256 %x", name, t.bytes, t.sum.Sum(nil))
}

// connection returns the marker of a forwarded connection that begins or ends.
func (z *sizes) connection(e frames.Event) string {
	if e.Channel != frames.Data {
		return ""
	}
	switch p := z.ports[e.Stream]; {
	case e.Type == frames.Opened:
		p = &portTotal{name: fmt.Sprintf("connection %d to port %.5s", e.Stream, e.Port)}
		z.ports[e.Stream] = p
		return p.name + " opened"
	case p != nil && (e.From == frames.Server || e.Reset):
		delete(z.ports, e.Stream)
		return p.closed()
	}
	return ""
}

func (p *portTotal) closed() string {
	return fmt.Sprintf("%s closed: %d bytes from the client, %d from the server", p.name, p.bytes[frames.Client], p.bytes[frames.Server])
}

// end returns the markers of the connections that are still open.
func (z *sizes) end() (texts []string) {
	for _, id := range slices.Sorted(maps.Keys(z.ports)) {
		texts = append(texts, z.ports[id].closed())
	}
	return texts
}

// statusText says what the server's Status means.
func statusText(b []byte) string {
	var status struct {
		Status, Message, Reason string
		Details                 struct {
			Causes []struct{ Reason, Message string }
		}
	}
	if len(b) == 0 {
		return "the server sent no status"
	}
	if json.Unmarshal(b, &status) != nil {
		return strings.ToValidUTF8(string(b[:min(len(b), 200)]), "\uFFFD")
	}
	for _, c := range status.Details.Causes {
		if c.Reason == "ExitCode" {
			return fmt.Sprintf("exit code %.10s", c.Message)
		}
	}
	if status.Status == "Success" {
		return "exit code 0"
	}
	return fmt.Sprintf("%.200s", status.Message)
}
