package podlog

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testbed/podnode/kubelet"
)

func TestRead(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l, err := Open(filepath.Join(t.TempDir(), "log"), func() time.Time { at = at.Add(time.Second); return at })
	if err != nil {
		t.Fatal(err)
	}
	l.Copy(Stdout, strings.NewReader("one\ntwo\nthree\nfour without an end"))
	for _, tt := range []struct {
		o    kubelet.LogOptions
		want string
		why  string
	}{
		{kubelet.LogOptions{Tail: -1}, "one\ntwo\nthree\nfour without an end\n", "all"},
		{kubelet.LogOptions{Tail: 2}, "three\nfour without an end\n", "the end"},
		{kubelet.LogOptions{Tail: 0}, "", "nothing of the past"},
		{kubelet.LogOptions{Tail: 9}, "one\ntwo\nthree\nfour without an end\n", "more than there is"},
		{kubelet.LogOptions{Tail: -1, Bytes: 5}, "one\nt", "so many bytes"},
		{kubelet.LogOptions{Tail: -1, Since: at}, "four without an end\n", "since then"},
		{kubelet.LogOptions{Tail: 1, Timestamps: true}, "2026-01-02T03:04:09Z four without an end\n", "with the time"},
	} {
		var b bytes.Buffer
		if err := l.Read(t.Context(), tt.o, &b); err != nil || b.String() != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.why, &b, err, tt.want)
		}
	}
}

// A follower sees earlier and new lines, each once, and detects the end.
func TestFollow(t *testing.T) {
	l, err := Open(filepath.Join(t.TempDir(), "log"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	said, say := io.Pipe()
	go func() {
		l.Copy(Stdout, said)
		l.End()
	}()
	if _, err := io.WriteString(say, "one\n"); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(l.Read(t.Context(), kubelet.LogOptions{Follow: true, Tail: -1}, w)) }()
	b := make([]byte, 4)
	if _, err := io.ReadFull(r, b); err != nil || string(b) != "one\n" {
		t.Fatalf("%q, %v", b, err)
	}
	go func() {
		io.WriteString(say, "two\nthr")
		io.WriteString(say, "ee\n")
		say.Close()
	}()
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "two\nthree\n" {
		t.Errorf("%q, %v", rest, err)
	}
}
