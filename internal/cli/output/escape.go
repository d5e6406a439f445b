// Package output formats tka's output for people and for programs: text, tables, JSON and YAML, and the errors of its commands. It keeps
// law 10: untrusted text cannot control a terminal, and a parser restores it unchanged. An error says once what was being done, with advice
// and an exit code. A misspelt word is an error that suggests the nearest valid word; tka never acts on a guess.
package output

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxText bounds how much of one untrusted text is shown.
const maxText = 4000

// Escape makes untrusted text harmless for a terminal. It escapes control characters, escape sequences, invisible characters and those that
// change the text direction. The result is one line.
func Escape(s string) string {
	if strings.IndexFunc(s, Unsafe) < 0 && len(s) <= maxText && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		if b.Len() > maxText {
			b.WriteString("…")
			break
		}
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case Unsafe(r):
			b.WriteString(escapeRune(r))
		default:
			b.WriteRune(r)
		}
		s = s[n:]
	}
	return b.String()
}

// Unsafe reports whether r must not reach a terminal. unicode.IsPrint excludes control and format characters, including escapes and bidi
// marks, and all white space except the space.
func Unsafe(r rune) bool { return !unicode.IsPrint(r) }

func escapeRune(r rune) string {
	switch {
	case r == '\n':
		return `\n`
	case r == '\t':
		return `\t`
	case r < 0x80:
		return fmt.Sprintf(`\x%02x`, r)
	case r < 0x10000:
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\U%08x`, r)
}

// ShellQuote quotes s as one word of a POSIX shell, for commands that people copy.
func ShellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("./_-:@=+,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// HumanDuration formats a duration for people: "7h59m", "8h", "12m", "40s".
func HumanDuration(d time.Duration) string {
	switch {
	case d < time.Minute:
		return d.Truncate(time.Second).String()
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
	s := strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
	if d >= time.Hour && d%time.Hour < time.Minute {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
