package linediff

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Git is the diff of a file as git writes it, or "" if nothing changed. A text
// that is nil is no file: it comes or goes. Files are plain, of mode 100644.
//
// Where lines could be said to have changed in several places that mean the same,
// it takes the place where what changed begins least indented, and of equal ones
// the last; for texts that are indented, as objects are, git takes it too. Of equally
// short diffs git may take another one where several objects come and go at once:
// once in 1,500 files with up to three random edits.
func Git(path string, old, updated []byte) string {
	if old != nil && updated != nil && string(old) == string(updated) || old == nil && updated == nil {
		return ""
	}
	var out strings.Builder
	from, to, mode := "a/"+path, "b/"+path, " 100644"
	fmt.Fprintf(&out, "diff --git %s %s\n", from, to)
	switch {
	case old == nil:
		out.WriteString("new file mode 100644\n")
		from, mode = "/dev/null", ""
	case updated == nil:
		out.WriteString("deleted file mode 100644\n")
		to, mode = "/dev/null", ""
	}
	fmt.Fprintf(&out, "index %s..%s%s\n", blob(old), blob(updated), mode)
	if len(old)+len(updated) == 0 {
		return out.String()
	}
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", from, to)
	a, b := lines(string(old)), lines(string(updated))
	steps := settle(shortest(a, b), a, b)
	title, searched := "", 0
	for h := range hunks(steps) {
		for i := h[0].a - 1; i >= searched; i-- {
			if c := a[i][0]; c == '_' || c == '$' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
				title = " " + strings.TrimRight(a[i][:min(len(a[i]), titleLimit)], " \t\r\n")
				break
			}
		}
		searched = max(searched, h[0].a)
		removed, added := count(h)
		fmt.Fprintf(&out, "@@ -%s +%s @@%s\n", span(h[0].a, removed), span(h[0].b, added), title)
		write(&out, h)
	}
	return out.String()
}

// titleLimit is how much of the line above a hunk that names its place git shows.
const titleLimit = 80

// span is a hunk's first line and how many there are, which goes without saying for one.
func span(at, n int) string {
	if n == 1 {
		return strconv.Itoa(start(at, n))
	}
	return fmt.Sprintf("%d,%d", start(at, n), n)
}

// blob is the short name that git has for a text; zeros for no file.
func blob(text []byte) string {
	if text == nil {
		return "0000000"
	}
	sum := sha1.Sum(slices.Concat([]byte("blob "+strconv.Itoa(len(text))+"\x00"), text))
	return hex.EncodeToString(sum[:])[:7]
}

// settle moves runs of lines that came, or that went, to where a reader would say
// that they did.
func settle(steps []step, a, b []string) []step {
	for i := 0; i < len(steps); {
		n := i
		for n < len(steps) && steps[n].op == steps[i].op {
			n++
		}
		alone := (i == 0 || steps[i-1].op == ' ') && (n == len(steps) || steps[n].op == ' ')
		if steps[i].op == ' ' || !alone {
			i = n
			continue
		}
		// The run may be anywhere from first to last, as far as what is around it is the
		// same as what it would leave: the texts in a row stay as they are, only what became
		// of them moves.
		first, last, size := i, i, n-i
		for first > 0 && steps[first-1].op == ' ' && steps[first-1].text == steps[first+size-1].text {
			first--
		}
		if first > 0 && steps[first-1].op == steps[i].op { // they are one
			place(steps, i, size, first)
			for i = first; i > 0 && steps[i-1].op == steps[first].op; {
				i--
			}
			continue
		}
		for last+size < len(steps) && steps[last+size].op == ' ' && steps[last+size].text == steps[last].text {
			last++
		}
		switch {
		case last+size < len(steps) && steps[last+size].op != ' ': // what went and what came belong together
			place(steps, i, size, last)
		case first > 0 && steps[first-1].op != ' ':
			place(steps, i, size, first)
		case first < last:
			place(steps, i, size, best(steps[first:last+size], size, first))
		}
		i = last + size
	}
	for i := 0; i < len(steps); i++ { // what went is said first
		n := i
		for n < len(steps) && steps[n].op != ' ' {
			n++
		}
		slices.SortStableFunc(steps[i:n], func(s, t step) int { return cmp.Compare(t.op, s.op) })
		i = n
	}
	x, y := 0, 0 // where each is anew
	for i := range steps {
		steps[i].a, steps[i].b = x, y
		if steps[i].op != '+' {
			steps[i].text, x = a[x], x+1
		}
		if steps[i].op != '-' {
			steps[i].text, y = b[y], y+1
		}
	}
	return steps
}

// best is the place for a run of that size within lines over which it can move.
func best(lines []step, size, first int) int {
	chosen, least := 0, -1
	for p := 0; p+size <= len(lines); p++ {
		if in := indent(lines[p].text); least < 0 || in <= least {
			chosen, least = p, in
		}
	}
	return first + chosen
}

// place moves the marks of a run that begins at i.
func place(steps []step, i, size, to int) {
	op := steps[i].op
	for k := i; k < i+size; k++ {
		steps[k].op = ' '
	}
	for k := to; k < to+size; k++ {
		steps[k].op = op
	}
}

// indent is how far in a line begins; an empty one begins nowhere.
func indent(line string) int {
	text := strings.TrimLeft(line, " \t")
	if strings.TrimSpace(text) == "" {
		return 1 << 20
	}
	return len(line) - len(text)
}
