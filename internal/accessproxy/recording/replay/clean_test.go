package replay_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/accessproxy/recording/replay"
)

// LAW-11: what a browser gets of a recording has text, colours and movements only, and sizes that a page can show.
func TestClean(t *testing.T) {
	const hostile = `{"version":2,"width":1000000,"height":3,"command":"curl http://evil.example","env":{"SHELL":"x"}}
[0.5,"o","a\u001b]8;;javascript:alert(1)\u001b\\b\u001b]0;title\u0007\u001b]52;c;eA==\u0007\u0007"]
[0.4,"o","\u001b[31mred\u001b[9"]
[0.7,"o","9999999999Xstill"]
[0.8,"i","secret"]
[0.9,"r","99999x99999"]
[1.0,"r","0x-1"]
[1.1,"r","12"]
[1.2,"x","unknown"]
[1e300,"m","end: \u001b[2J\u202eexit code 0"]
[1.3,"o"]
no event
[1.4,"o","cut`
	var out strings.Builder
	if err := replay.Clean(&out, strings.NewReader(hostile), 1<<20); err != nil {
		t.Fatal(err)
	}
	want := `{"version":2,"width":500,"height":3}
[0.500000,"o","ab"]
[0.500000,"o","\u001b[31mred"]
[0.700000,"o","still"]
[0.900000,"r","500x200"]
[1.000000,"r","80x24"]
[10000000.000000,"m","end: [2Jexit code 0"]
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A recording that is larger than a page can hold ends with a marker that says so. Other files are refused.
func TestCleanRefuses(t *testing.T) {
	long := "{\"version\":2,\"width\":80,\"height\":24}\n" + strings.Repeat("[1,\"o\",\"0123456789<<<<\"]\n", 1000)
	var out strings.Builder
	if err := replay.Clean(&out, strings.NewReader(long), 1000); !errors.Is(err, replay.ErrTooLarge) {
		t.Errorf("a long recording: %v, want %v", err, replay.ErrTooLarge)
	}
	if n := out.Len(); n > 1500 || !strings.HasSuffix(out.String(), "\"m\",\"the rest of the recording is not shown here\"]\n") {
		t.Errorf("%d bytes that end with %q", n, out.String()[max(0, n-100):])
	}
	for why, text := range map[string]string{"no header": "[1,\"o\",\"x\"]\n", "another version": "{\"version\":3}\n", "empty": "", "a long line": "{\"version\":2}\n" + strings.Repeat("x", 5<<20)} {
		if err := replay.Clean(io.Discard, strings.NewReader(text), 1<<20); err == nil || errors.Is(err, replay.ErrTooLarge) {
			t.Errorf("%s: %v, want an error", why, err)
		}
	}
}

// LAW-11: whatever a recording is, each line of its copy is JSON, the events are in order, and their output passes the grammar of the
// sequences that may reach a terminal.
func FuzzClean(f *testing.F) {
	f.Add(cast)
	f.Add("{\"version\":2}\n[1,\"o\",\"\\u001b[1m\"]\n")
	f.Fuzz(func(t *testing.T, text string) {
		var out strings.Builder
		if err := replay.Clean(&out, strings.NewReader(text), 1<<20); err != nil {
			return
		}
		lines := bufio.NewScanner(strings.NewReader(out.String()))
		lines.Buffer(nil, 8<<20)
		lines.Scan()
		var head struct{ Version, Width, Height int }
		if err := json.Unmarshal(lines.Bytes(), &head); err != nil {
			t.Fatalf("the header %q: %v", lines.Bytes(), err)
		}
		if head.Width < 1 || head.Width > 500 {
			t.Fatalf("the header %q has the width %d, want 1 to 500", lines.Bytes(), head.Width)
		}
		last, output := 0.0, ""
		for lines.Scan() {
			var event [3]any
			if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
				t.Fatalf("the event %q: %v", lines.Bytes(), err)
			}
			at, _ := event[0].(float64)
			if at < last {
				t.Errorf("%v after %v", at, last)
			}
			if last = at; event[1] == "o" {
				output += fmt.Sprint(event[2])
			}
		}
		if !grammar.MatchString(output) {
			t.Errorf("the output is %q", output)
		}
	})
}
