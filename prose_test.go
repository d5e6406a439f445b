package tailplane

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// smells are phrasings that slow a reader down, each with the highest number of occurrences in 10,000 words that the
// repository allows. A count is only an indicator: the aim is a sentence that a reader understands at once.
var smells = []struct {
	name    string
	pattern *regexp.Regexp // nil means a sentence of more than 40 words
	goal    float64
}{
	{"indefinite people", regexp.MustCompile(`(?i)\b(?:some|no|any|every)body\b|\b(?:some|any|every) ?one else\b`), 2},
	{"told, asked, said, heard", regexp.MustCompile(`(?i)\b(?:is|are|was|were|be|been) (?:told|asked|said|heard)\b`), 2},
	{"who or what as a subject", regexp.MustCompile(`(?:^|[.;:] )(?:Who|Whoever|Whom|Whose|Of whom|What) [a-z]+ `), 1},
	{"of ours, of its own", regexp.MustCompile(`(?i)\bof (?:ours|theirs|its own|his own|our own|mine)\b`), 3},
	{"old words", regexp.MustCompile(`(?i)\b(?:anew|for ever|upon|beside|thereof|therein|by which|else than|no more|not any more)\b`), 6},
	{"allows to", regexp.MustCompile(`(?i)\b(?:allows?|permits?|lets?) to \w+`), 0.5},
	{"long sentences", nil, 15},
}

// question is a "Who is" or "What if" that the third smell does not include.
var question = regexp.MustCompile(`(?:Who|Whoever|Whom|Whose|Of whom|What) (?:is|are|was|were|do|does|did|can|if|happens|happened|to) $`)

// A sample is a text, divided into paragraphs.
type sample []string

func (s sample) words() (n int) {
	for _, p := range s {
		n += len(strings.Fields(p))
	}
	return n
}

var sentenceEnd = regexp.MustCompile(`[.;:!?] `)

// count returns how often a smell occurs in the sample.
func (s sample) count(pattern *regexp.Regexp) (n int) {
	for _, p := range s {
		if pattern == nil {
			for _, sentence := range sentenceEnd.Split(p, -1) {
				if len(strings.Fields(sentence)) > 40 {
					n++
				}
			}
			continue
		}
		for _, m := range pattern.FindAllString(p, -1) {
			if !question.MatchString(m) {
				n++
			}
		}
	}
	return n
}

var (
	comment   = regexp.MustCompile(`^\s*//\s?(.*)$`)
	directive = regexp.MustCompile(`^(?:go:|\+|nolint|-{3,})`)
	trailing  = regexp.MustCompile("\\s// ([^\"`]*)$")
	quoted    = regexp.MustCompile("\"((?:[^\"\\\\\n]|\\\\.)*)\"|`([^`]*)`")
	noProse   = regexp.MustCompile(`[{};<>]|\\n.*\\n|^\s*(?:apiVersion|kind):`)
	fenced    = regexp.MustCompile("(?s)```.*?```")
	paragraph = regexp.MustCompile(`\n\s*\n|\n\s*[-*|0-9]`)
	style     = regexp.MustCompile(`(?s)<style.*?</style>`)
	markup    = regexp.MustCompile(`>([^<>{}]{12,})<|'([^'\n]{16,})'|"([^"\n]{16,})"`)
)

// comments returns the comments of Go source, a block of lines as one paragraph.
func comments(source string) (s sample) {
	var block []string
	flush := func() {
		if len(block) > 0 {
			s, block = append(s, strings.Join(block, " ")), nil
		}
	}
	for line := range strings.Lines(source) {
		line = strings.TrimRight(line, "\n")
		if m := comment.FindStringSubmatch(line); m != nil && !directive.MatchString(m[1]) {
			block = append(block, m[1])
			continue
		}
		flush()
		if m := trailing.FindStringSubmatch(line); m != nil {
			s = append(s, m[1])
		}
	}
	flush()
	return s
}

// literals returns the strings of Go source that people read: those with more than four words.
func literals(source string) (s sample) {
	for _, m := range quoted.FindAllStringSubmatch(source, -1) {
		text := m[1] + m[2]
		if len(strings.Fields(text)) > 4 && !noProse.MatchString(text[:min(len(text), 200)]) {
			s = append(s, strings.ReplaceAll(text, `\n`, " "))
		}
	}
	return s
}

// pageText returns the text of a page of the dashboard.
func pageText(source string) (s sample) {
	for _, m := range markup.FindAllStringSubmatch(style.ReplaceAllString(source, ""), -1) {
		s = append(s, strings.Join(strings.Fields(m[1]+m[2]+m[3]), " "))
	}
	return s
}

// samples reads every text of the repository, by its kind.
func samples(t *testing.T) map[string]sample {
	t.Helper()
	all := map[string]sample{}
	for _, name := range tracked(t, "*") {
		ext := path.Ext(name)
		if ext != ".go" && ext != ".md" && ext != ".svelte" || strings.Contains(name, "testdata/") {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		switch {
		case ext == ".go" && strings.Contains(text[:min(len(text), 400)], "Code generated"):
		case strings.HasSuffix(name, "_test.go"):
			all["test comments"] = append(all["test comments"], comments(text)...)
		case ext == ".go":
			all["comments"] = append(all["comments"], comments(text)...)
			all["strings"] = append(all["strings"], literals(text)...)
		case ext == ".md":
			all["docs"] = append(all["docs"], paragraph.Split(fenced.ReplaceAllString(text, " "), -1)...)
		default:
			all["dashboard"] = append(all["dashboard"], pageText(text)...)
		}
	}
	return all
}

// TestProse keeps the English of comments, messages, documents and pages plain.
func TestProse(t *testing.T) {
	all := samples(t)
	for _, kind := range []string{"comments", "test comments", "strings", "docs", "dashboard"} {
		s := all[kind]
		words := s.words()
		if words < 1000 {
			t.Errorf("%s: only %d words were read", kind, words)
			continue
		}
		var rates []string
		for _, smell := range smells {
			rate := float64(s.count(smell.pattern)) * 10_000 / float64(words)
			rates = append(rates, fmt.Sprintf("%.1f", rate))
			if rate > smell.goal {
				t.Errorf("%s: %q occurs %.1f times in 10,000 words, more than %.1f", kind, smell.name, rate, smell.goal)
			}
		}
		t.Logf("%s: %d words: %s", kind, words, strings.Join(rates, ", "))
	}
}

// TestSmells checks that each smell is found, and that plain sentences have none.
func TestSmells(t *testing.T) {
	long := strings.Repeat("word ", 41)
	for i, text := range []string{"nobody knows", "it is told", "Whoever comes is served", "a lock of its own", "read anew", "allows to write", long} {
		if n := (sample{text}).count(smells[i].pattern); n != 1 {
			t.Errorf("%s: %d in %q, want 1", smells[i].name, n, text)
		}
	}
	plain := sample{"The operator deletes the binding.", "What is a grant? Who is calling?", "Callers must hold mu."}
	for _, smell := range smells {
		if n := plain.count(smell.pattern); n != 0 {
			t.Errorf("%s: %d in plain sentences", smell.name, n)
		}
	}
}
