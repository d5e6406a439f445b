// Package replay shows recordings of terminals in a terminal. A recording is foreign data (law 11): the program that ran in the recorded
// session chose its bytes. A [Filter] passes on only what changes the screen, so a recording cannot write the clipboard, change the title,
// ask the terminal a question whose answer would be typed into the shell, or leave the terminal in another mode. A [Player] keeps the time,
// and [Clean] filters a whole recording for another player.
package replay

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxSequence is the most bytes of a control sequence that a Filter passes on. Longer ones are dropped.
const maxSequence = 64

// maxDigits is the most digits of a parameter. A terminal with a million rows does not exist.
const maxDigits = 4

// A Filter passes on text and the control sequences that change the screen (ECMA-48, and DEC's for the cursor, wrapping and the alternate
// screen), and drops everything else. The zero value is ready to use. Its memory is bounded, whatever comes.
type Filter struct {
	state     state
	sequence  []byte // the control sequence so far, without ESC
	changed   bool   // something was passed on
	alternate bool   // the alternate screen is shown
}

// A state is the position in a control sequence.
type state int

const (
	text    state = iota
	escape        // after ESC
	charset       // after ESC ( or ESC )
	other         // after ESC and an intermediate byte: drop up to the final byte
	control       // after CSI
	long          // in a CSI that is not passed on: drop up to the final byte
	str           // in a string such as OSC, DCS, APC, PM or SOS: drop up to its end
	strEnd        // after ESC in a string
)

// Pass returns what of s may go to the terminal. A sequence that s does not finish continues with the next call.
func (f *Filter) Pass(s string) string {
	var out strings.Builder
	for _, r := range s {
		f.rune(&out, r)
	}
	f.changed = f.changed || out.Len() > 0
	return out.String()
}

// Reset returns what brings the terminal back to its usual state.
func (f *Filter) Reset() string {
	if !f.changed {
		return ""
	}
	end := "\x1b[0m\x1b(B\x0f\x1b[?5l\x1b[?6l\x1b[4l\x1b[r\x1b[?7h\x1b[?25h\x1b[?2026l"
	if f.alternate {
		end += "\x1b[?1049l"
	}
	return end + "\r\n"
}

func (f *Filter) rune(out *strings.Builder, r rune) {
	switch { // these interrupt every sequence
	case r == 0x1b && f.state == str:
		f.state = strEnd
		return
	case r == 0x1b:
		f.state = escape
		return
	case r == 0x18, r == 0x1a: // CAN and SUB
		f.state = text
		return
	case r >= 0x80 && r < 0xa0:
		f.c1(r)
		return
	}
	switch f.state {
	case text:
		if isShown(r) {
			out.WriteRune(r)
		}
	case escape:
		f.escape(out, r)
	case charset:
		if f.state = text; strings.ContainsRune("0AB", r) {
			out.WriteString("\x1b" + string(f.sequence) + string(r))
		}
	case other:
		if r < 0x20 || r > 0x2f {
			f.state = text
		}
	case control, long:
		f.control(out, r)
	case str:
		if r == 0x07 { // xterm ends an OSC with BEL too
			f.state = text
		}
	case strEnd:
		if f.state = text; r != '\\' { // ESC ended the string, and begins another sequence
			f.escape(out, r)
		}
	}
}

// c1 takes a control character of the upper half. A terminal may read it like ESC and a letter.
func (f *Filter) c1(r rune) {
	if f.state == str && r != 0x9c {
		return
	}
	switch r {
	case 0x9b:
		f.state, f.sequence = control, append(f.sequence[:0], '[')
	case 0x90, 0x98, 0x9d, 0x9e, 0x9f:
		f.state = str
	default:
		f.state = text
	}
}

// escape takes the character after ESC.
func (f *Filter) escape(out *strings.Builder, r rune) {
	f.state = text
	switch {
	case r == '[':
		f.state, f.sequence = control, append(f.sequence[:0], '[')
	case r == '(' || r == ')':
		f.state, f.sequence = charset, append(f.sequence[:0], byte(r))
	case strings.ContainsRune("]PX^_k", r): // "k" begins screen's title
		f.state = str
	case strings.ContainsRune("78DEHM", r): // the cursor, tabulators
		out.WriteString("\x1b" + string(r))
	case r >= 0x20 && r <= 0x2f:
		f.state = other
	case r < 0x20 && isShown(r):
		out.WriteRune(r)
	}
}

// control takes a character after CSI.
func (f *Filter) control(out *strings.Builder, r rune) {
	switch {
	case r < 0x20: // a terminal executes control characters in the middle of a sequence
		if isShown(r) {
			out.WriteRune(r)
		}
	case r > 0x7e:
		f.state = text
	case r < 0x40:
		if f.sequence = append(f.sequence, byte(r)); len(f.sequence) >= maxSequence {
			f.state, f.sequence = long, f.sequence[:1]
		}
	default:
		passed := f.state == control && f.passes(string(f.sequence[1:]), r)
		if f.state = text; passed {
			out.WriteByte(0x1b)
			out.Write(f.sequence)
			out.WriteRune(r)
		}
	}
}

// modes are the private modes that a recording may set: reverse video, origin, wrapping, cursor, alternate screens, synchronized output.
var modes = map[string]bool{"5": true, "6": true, "7": true, "12": true, "25": true, "47": true, "1047": true, "1048": true, "1049": true, "2026": true}

// passes reports whether a control sequence only changes the screen.
func (f *Filter) passes(parameters string, final rune) bool {
	private := strings.HasPrefix(parameters, "?")
	list := strings.FieldsFunc(strings.TrimPrefix(parameters, "?"), func(r rune) bool { return r == ';' || r == ':' })
	for _, p := range list {
		if len(p) > maxDigits || strings.Trim(p, "0123456789") != "" {
			return false
		}
	}
	if !private {
		if final == 'h' || final == 'l' {
			return len(list) == 1 && list[0] == "4" // insert mode
		}
		switch final {
		case 's', 'u': // with parameters: margins, and the keyboard's protocol
			return parameters == ""
		case 'T': // with more parameters: tracking of the mouse
			return len(list) < 2 && isFew(list)
		case 'L', 'M', 'S': // a player may move line by line
			return isFew(list)
		}
		return strings.ContainsRune("@ABCDEFGHIJKLMPSXZ`adefgmr", final)
	}
	switch final {
	case 'J', 'K':
		return true
	case 'h', 'l':
		for _, p := range list {
			if !modes[p] {
				return false
			}
		}
		for _, p := range list {
			if p == "47" || p == "1047" || p == "1049" {
				f.alternate = final == 'h'
			}
		}
		return len(list) > 0
	}
	return false
}

// isFew reports whether no parameter is more than a terminal has rows.
func isFew(list []string) bool {
	return !slices.ContainsFunc(list, func(p string) bool { n, _ := strconv.Atoi(p); return n > maxRows })
}

// isShown reports whether a character is text, or a control character that moves the cursor or selects a character set. The bell is none.
func isShown(r rune) bool {
	switch {
	case r == utf8.RuneError:
		return true
	case r < 0x20:
		return strings.ContainsRune("\b\t\n\v\f\r\x0e\x0f", r)
	case r == 0x7f, r >= 0x80 && r < 0xa0:
		return false
	case unicode.Is(unicode.Bidi_Control, r), r >= 0xe0000 && r <= 0xe0fff: // they change the order of text, or hide text
		return false
	}
	return true
}
