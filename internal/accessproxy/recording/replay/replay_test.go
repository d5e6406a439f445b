package replay_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/accessproxy/recording/replay"
)

func TestFilter(t *testing.T) {
	for _, x := range []struct{ why, in, want string }{
		{"text", "ada@web-0:~$ ls\r\n日本 é\t\b", "ada@web-0:~$ ls\r\n日本 é\t\b"},
		{"colours", "\x1b[1;31mred\x1b[0m \x1b[38:2:1:2:3mrgb", "\x1b[1;31mred\x1b[0m \x1b[38:2:1:2:3mrgb"},
		{"an editor", "\x1b[?1049h\x1b[2J\x1b[1;1H~\x1b[?25l\x1b[3;20r\x1b7\x1b8\x1b[?1049l", "\x1b[?1049h\x1b[2J\x1b[1;1H~\x1b[?25l\x1b[3;20r\x1b7\x1b8\x1b[?1049l"},
		{"line drawing", "\x1b(0lqk\x1b(B\x0e\x0f", "\x1b(0lqk\x1b(B\x0e\x0f"},
		{"the clipboard", "a\x1b]52;c;cm0gLXJmIC8=\x07b", "ab"},
		{"the clipboard, ended by ST", "a\x1b]52;c;eA==\x1b\\b", "ab"},
		{"the clipboard, with characters of the upper half", "a\u009d52;c;eA==\u009cb", "ab"},
		{"the title", "a\x1b]0;root@prod\x07b\x1bktitle\x1b\\c", "abc"},
		{"a link", "\x1b]8;;file:///etc/passwd\x1b\\click\x1b]8;;\x1b\\", "click"},
		{"device control strings", "a\x1bP+q544e\x1b\\b\x1b_G;AAAA\x1b\\c\x1b^x\x1b\\d\x1bXx\x1b\\e", "abcde"},
		{"questions", "a\x1b[6n\x1b[c\x1b[>c\x1b[>q\x1b[21t\x1b[?2004$p\x1bZ\x05b", "ab"},
		{"the mouse and the keyboard", "a\x1b[?1000h\x1b[?1006h\x1b[?2004h\x1b[?1h\x1b[>4;2m\x1b[=1u\x1b[>1u\x1b=b", "ab"},
		{"modes together with one that is not passed on", "\x1b[?25;1000h", ""},
		{"a reset", "a\x1bcb\x1b[!pc", "abc"},
		{"repetition", "a\x1b[999999999bb", "ab"},
		{"large parameters", "\x1b[99999999Aa", "a"},
		{"lines moved one by one, more than a terminal has", "a\x1b[9999S\x1b[9999T\x1b[201L\x1b[9999Mb\x1b[2S", "ab\x1b[2S"},
		{"a long sequence", "\x1b[" + strings.Repeat("1;", 1000) + "ma", "a"},
		{"a bell", "a\x07b", "ab"},
		{"the order of text", "a\u202eb\u2066c", "abc"},
		{"hidden text", "a\U000e0041b", "ab"},
		{"a string that does not end", "a\x1b]52;c;" + strings.Repeat("A", 1<<20), "a"},
		{"a string that is cancelled", "a\x1b]52;c;\x18b", "ab"},
		{"a string in a sequence", "a\x1b[1\x1b]0;x\x07b", "ab"},
		{"an unknown escape", "a\x1b#8\x1b%Gb", "ab"},
	} {
		if diff := cmp.Diff(x.want, new(replay.Filter).Pass(x.in)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.why, diff)
		}
	}
}

// grammar describes everything that may reach a terminal. It is written independently of the Filter.
var grammar = regexp.MustCompile("^(?:[^\x00-\x1f\x7f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]|[\b\t\n\v\f\r\x0e\x0f]|" +
	"\x1b[78DEHM]|\x1b[()][0AB]|\x1b\\[[0-9;:]{0,62}[@A-MPSXZ`adefgmr]|\x1b\\[[0-9]{0,4}T|\x1b\\[[;:]*[0-9]{0,4}[;:]*T|\x1b\\[[su]|\x1b\\[[;:]*4[;:]*[hl]|\x1b\\[\\?[0-9;:]{0,62}[JK]|" +
	"\x1b\\[\\?(?:[;:]*(?:5|6|7|12|25|47|1047|1048|1049|2026))+[;:]*[hl])*$")

// LAW-11: nothing but text and sequences that change the screen reaches the terminal, in whatever parts the recording comes, and what the
// filter has passed on passes again unchanged.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{"plain", "\x1b[1m", "\x1b]52;c;eA==\x07", "\x1bP1$r\x1b\\", "\u009b2J", "\x1b[?1049h", "\x1b(0", "\x1b[1\x1b[2", "\x1b[4;4h", "\x1b[;5T"} {
		f.Add(s, uint16(3))
	}
	f.Fuzz(func(t *testing.T, s string, at uint16) {
		s = strings.ToValidUTF8(s, "\ufffd")
		whole := new(replay.Filter)
		got := whole.Pass(s)
		if len(got) > len(s) {
			t.Errorf("%d bytes became %d", len(s), len(got))
		}
		if !grammar.MatchString(got) {
			t.Errorf("%q passes %q", s, got)
		}
		runes := []rune(s)
		cut := int(at) % (len(runes) + 1)
		parts := new(replay.Filter)
		if diff := cmp.Diff(got, parts.Pass(string(runes[:cut]))+parts.Pass(string(runes[cut:]))); diff != "" {
			t.Errorf("%q in two parts (-whole +parts):\n%s", s, diff)
		}
		if again := new(replay.Filter).Pass(got); again != got {
			t.Errorf("%q passes %q, and that passes %q", s, got, again)
		}
	})
}

const cast = `{"version":2,"width":80,"height":24}
[0.500000,"o","a"]
[0.600000,"i","secret"]
[90.000000,"o","\u001b]52;c;eA==\u0007b"]
[91.000000,"r","120x40"]
not a line of a recording
[92.000000,"o","c\r\n"]
[92.500000,"m","end: exit code 0"]
[93.000000,"o","cut`

func TestPlayer(t *testing.T) {
	for _, x := range []struct {
		why    string
		player replay.Player
		want   string
		waited time.Duration
	}{
		{"as it was", replay.Player{Speed: 1}, "abc\r\n", 92500 * time.Millisecond},
		{"twice as fast, without long pauses", replay.Player{Speed: 2, MaxIdle: 2 * time.Second}, "abc\r\n", 2550 * time.Millisecond},
		{"at once, with markers", replay.Player{Markers: true}, "abc\r\n[end: exit code 0]\r\n", 0},
	} {
		var out strings.Builder
		var waited time.Duration
		p := x.player
		p.Out, p.Sleep = &out, func(_ context.Context, d time.Duration) error { waited += d; return nil }
		if err := p.Play(t.Context(), strings.NewReader(cast)); err != nil {
			t.Errorf("%s: %v", x.why, err)
		}
		got, reset, _ := strings.Cut(out.String(), "\x1b[0m")
		if diff := cmp.Diff(x.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.why, diff)
		}
		if !strings.Contains(reset, "\x1b[?25h") {
			t.Errorf("%s: the terminal is not brought back: %q", x.why, reset)
		}
		if waited.Round(time.Millisecond) != x.waited {
			t.Errorf("%s: waited %v, want %v", x.why, waited, x.waited)
		}
	}
	for why, text := range map[string]string{"no header": "[1,\"o\",\"x\"]\n", "another version": "{\"version\":3}\n", "empty": "", "a long line": "{\"version\":2}\n" + strings.Repeat("x", 5<<20)} {
		p := replay.Player{Out: new(strings.Builder)}
		if err := p.Play(t.Context(), strings.NewReader(text)); err == nil {
			t.Errorf("%s: no error", why)
		}
	}
}
