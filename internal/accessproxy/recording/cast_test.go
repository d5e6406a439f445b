package recording

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"tailscale.com/sessionrecording"
)

// events reads the lines of a recording after its header, as "code text".
func events(t *testing.T, cast string) (texts []string) {
	t.Helper()
	for line := range strings.Lines(cast) {
		if strings.HasPrefix(line, "{") {
			continue
		}
		var e [3]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("the line %q: %v", line, err)
		}
		texts = append(texts, e[1].(string)+" "+e[2].(string))
	}
	return texts
}

// TestHeader checks that Tailscale's own type reads our header.
func TestHeader(t *testing.T) {
	h := Header{Version: 2, Width: 120, Height: 40, Timestamp: 1, Command: "sh -c <ls>", SrcNode: "laptop.tail.ts.net", SrcNodeID: "n1", SrcNodeUserID: 7,
		SrcNodeUser: "ada@example.com", LocalUser: "tailplane-signins/ada", ConnectionID: "audit-1",
		Kubernetes: &Kubernetes{PodName: "web-0", Namespace: "shop", Container: "app", SessionType: "exec"},
		Tailplane:  &Details{RecordingID: NewID(time.Unix(1, 0)), Cluster: "prod", SignIn: "ada-1", AuditID: "audit-1", Kind: "exec", TTY: true}}
	var c caster
	if err := c.header(h); err != nil {
		t.Fatal(err)
	}
	var theirs sessionrecording.CastHeader
	if err := json.Unmarshal(c.buf, &theirs); err != nil {
		t.Fatal(err)
	}
	want := sessionrecording.CastHeader{Version: 2, Width: 120, Height: 40, Timestamp: 1, Command: "sh -c <ls>", SrcNode: "laptop.tail.ts.net", SrcNodeID: "n1",
		SrcNodeUserID: 7, SrcNodeUser: "ada@example.com", LocalUser: "tailplane-signins/ada", ConnectionID: "audit-1",
		Kubernetes: &sessionrecording.Kubernetes{PodName: "web-0", Namespace: "shop", Container: "app", SessionType: "exec"}}
	if diff := cmp.Diff(want, theirs); diff != "" {
		t.Errorf("Tailscale reads (-want +got):\n%s", diff)
	}
	ours, err := ParseHeader([]byte(strings.TrimSuffix(string(c.buf), "\n")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h, ours); diff != "" {
		t.Errorf("we read (-want +got):\n%s", diff)
	}
	for why, line := range map[string]string{"no JSON": "x", "version 3": `{"version":3}`, "too long": `{"version":2,"title":"` + strings.Repeat("x", maxHeader) + `"}`} {
		if _, err := ParseHeader([]byte(line)); err == nil {
			t.Errorf("%s: the header was accepted", why)
		}
	}
}

func TestCastBytes(t *testing.T) {
	for _, x := range []struct {
		why   string
		parts []string
		want  []string
	}{
		{"plain text", []string{"a\r\nb"}, []string{"o a\r\nb"}},
		{"colours and quotes", []string{"\x1b[31m\"\\\x00\x7f"}, []string{"o \x1b[31m\"\\\x00\x7f"}},
		{"a rune over two frames", []string{"a\xe2\x82", "\xacb"}, []string{"o a", "o \u20acb"}},
		{"a rune over four frames", []string{"\xf0", "\x9f", "\x98", "\x80"}, []string{"o \U0001f600"}},
		{"a rune that never ends", []string{"\xf0\x9f", "ab"}, []string{"o \ufffd\ufffdab"}},
		{"a rune that a rune interrupts", []string{"\xe2", "\xe2\x82\xac"}, []string{"o \ufffd\u20ac"}},
		{"not UTF-8", []string{"a\xffb"}, []string{"o a\ufffdb"}},
		{"a late byte", []string{"\x80\x80"}, []string{"o \ufffd\ufffd"}},
		{"the end of the stream inside a rune", []string{"a\xe2\x82"}, []string{"o a", "o \ufffd\ufffd"}},
		{"nothing", []string{"", ""}, nil},
	} {
		c := caster{start: time.Unix(0, 0)}
		for _, p := range x.parts {
			c.bytes(time.Unix(1, 0), codeOutput, "stdout", []byte(p))
		}
		c.flush(time.Unix(1, 0), codeOutput, "stdout")
		if diff := cmp.Diff(x.want, events(t, string(c.buf))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.why, diff)
		}
	}
}

// FuzzCast checks that any bytes in any chunks become the same text, that each line is JSON, and that valid UTF-8 stays as it is.
func FuzzCast(f *testing.F) {
	for _, s := range []string{"a\xe2\x82\xacb", "\xf0\x9f\x98", "\x80\xff\"\\\x01", "\xed\xa0\x80", "\xe2\xe2\x82\xac"} {
		f.Add([]byte(s), byte(1), byte(2))
	}
	text := func(t *testing.T, b []byte, sizes ...byte) (s string) {
		c := caster{start: time.Unix(0, 0)}
		for i := 0; len(b) > 0; i++ {
			n := min(int(max(sizes[i%len(sizes)], 1)), len(b))
			c.bytes(time.Unix(2, 0), codeOutput, "stdout", b[:n])
			b = b[n:]
		}
		c.flush(time.Unix(3, 0), codeOutput, "stdout")
		for _, e := range events(t, string(c.buf)) {
			s += strings.TrimPrefix(e, "o ")
		}
		return s
	}
	f.Fuzz(func(t *testing.T, b []byte, first, second byte) {
		whole := text(t, b, 255, 255)
		if got := text(t, b, first, second); got != whole {
			t.Errorf("in chunks of %d and %d it is %q, want %q", first, second, got, whole)
		}
		if utf8.Valid(b) && whole != string(b) {
			t.Errorf("it is %q, want %q", whole, b)
		}
	})
}
