package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxSize bounds a document and a kubeconfig, in bytes; a ConfigMap holds no more.
const maxSize = 1 << 20

// A Finding is one thing that is wrong, or to be thought about, in a file.
type Finding struct {
	Line    int    `json:"line"` // from 1; 0: of the whole file
	Column  int    `json:"column"`
	Message string `json:"message"`
}

// String returns "line:column: message".
func (f Finding) String() string {
	if f.Line == 0 {
		return f.Message
	}
	return fmt.Sprintf("%d:%d: %s", f.Line, f.Column, f.Message)
}

// Invalid is the error of a file that is refused. It holds everything that is
// wrong with it, in the order of its lines.
type Invalid struct {
	Findings []Finding
}

// Error returns one finding a line.
func (e *Invalid) Error() string {
	lines := make([]string, len(e.Findings))
	for i, f := range e.Findings {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// A reader collects what is wrong while a tree of YAML is read.
type reader struct {
	wrong    []Finding
	warnings []Finding
	secret   bool // the file holds credentials: nothing of it is repeated
}

func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	f := Finding{Message: fmt.Sprintf(format, args...)}
	if n != nil {
		f.Line, f.Column = n.Line, n.Column
	}
	r.wrong = append(r.wrong, f)
}

func (r *reader) warn(line int, format string, args ...any) {
	r.warnings = append(r.warnings, Finding{Line: line, Column: 1, Message: fmt.Sprintf(format, args...)})
}

// result returns what is wrong as an error, in the order of the lines.
func (r *reader) result() error {
	if len(r.wrong) == 0 {
		return nil
	}
	slices.SortStableFunc(r.wrong, func(a, b Finding) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return &Invalid{r.wrong}
}

// root parses the one document that a file may hold; nil if it cannot.
func (r *reader) root(b []byte) *yaml.Node {
	if len(b) > maxSize {
		r.fail(nil, "the file is larger than %d bytes", maxSize)
		return nil
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	var n yaml.Node
	if err := d.Decode(&n); err != nil {
		if errors.Is(err, io.EOF) {
			r.fail(nil, "the file is empty")
		} else {
			r.syntax(err)
		}
		return nil
	}
	var second yaml.Node
	switch err := d.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		r.syntax(err)
		return nil
	default:
		r.fail(&second, "a second document begins here; the file is one document")
	}
	if r.aliases(&n) {
		return nil
	}
	if len(n.Content) != 1 || n.Content[0].Kind != yaml.MappingNode {
		r.fail(&n, "the file is not a mapping of fields to values")
		return nil
	}
	return n.Content[0]
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntax keeps the line that the parser gives; it knows no column.
func (r *reader) syntax(err error) {
	m := yamlLine.FindStringSubmatch(err.Error())
	f := Finding{Message: "not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	if len(m) == 2 && m[1] != "" {
		f.Line, _ = strconv.Atoi(m[1])
		f.Column, f.Message = 1, "not YAML: "+strings.TrimPrefix(err.Error(), m[0])
	}
	r.wrong = append(r.wrong, f)
}

// aliases refuses anchors, which make a small file a large one, and tags.
func (r *reader) aliases(n *yaml.Node) (found bool) {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		r.fail(n, "anchors and aliases are refused")
		return true
	case n.Style&yaml.TaggedStyle != 0:
		r.fail(n, "the tag %.20q is refused", n.Tag)
		return true
	}
	for _, c := range n.Content {
		found = r.aliases(c) || found
	}
	return found
}

// A field reads the value of one key.
type field func(n *yaml.Node)

// mapping reads a mapping: each key at most once, and none that is not in
// fields. It returns the node of each key that is there, or nil if n is no mapping.
func (r *reader) mapping(n *yaml.Node, what string, fields map[string]field) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s is not a mapping of fields to values", what)
		return nil
	}
	seen := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, known := fields[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || key.Tag != "!!str":
			r.fail(key, "%s has a key that is not a text", what)
		case seen[key.Value] != nil:
			r.fail(key, "%s has %s twice", what, key.Value)
		case !known && r.secret && danger(key.Value) == "":
			r.fail(key, "%s has a field here that it should not have", what)
		case !known:
			why := danger(key.Value)
			if why == "" {
				why = "; it has " + strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
			}
			r.fail(key, "%s has no field %.60q%s", what, key.Value, why)
		default:
			seen[key.Value] = key
			read(value)
		}
	}
	return seen
}

// danger says why a field that others know is refused here.
func danger(field string) string {
	switch field {
	case "exec", "auth-provider", "authProvider":
		return ": no program is run for a credential"
	case "proxy-url", "proxyURL", "proxyUrl":
		return ": a credential goes to its cluster and nowhere else"
	case "insecure-skip-tls-verify", "insecureSkipTLSVerify":
		return ": a cluster is known by its certificate"
	case "tokenFile", "token", "client-certificate", "client-key", "certificate-authority", "certFile", "keyFile":
		return ": a credential is what its Secret holds, and no path"
	case "server":
		return ": the address comes from the Secret, or from servers"
	}
	return ""
}

// text reads a text.
func (r *reader) text(what string, to *string) field {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
			r.fail(n, "%s is not a text", what)
			return
		}
		*to = n.Value
	}
}

// word reads a text that a rule of form accepts.
func (r *reader) word(what string, form *regexp.Regexp, longest int, says string, to *string) field {
	return func(n *yaml.Node) {
		var s string
		bad := len(r.wrong)
		if r.text(what, &s)(n); len(r.wrong) > bad {
			return
		}
		if len(s) > longest || !form.MatchString(s) {
			r.fail(n, "%s %.60q is not %s", what, s, says)
			return
		}
		*to = s
	}
}

// oneOf reads one of some words.
func oneOf[T ~string](r *reader, what string, to *T, words ...T) field {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" || !slices.Contains(words, T(n.Value)) {
			r.fail(n, "%s is %.40q, want one of %v", what, n.Value, words)
			return
		}
		*to = T(n.Value)
	}
}

func (r *reader) truth(what string, to *bool) field {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Value != "true" && n.Value != "false" {
			r.fail(n, "%s is %.40q, want true or false", what, n.Value)
			return
		}
		*to = n.Value == "true"
	}
}

func (r *reader) number(what string, least, most int64, to func(int64)) field {
	return func(n *yaml.Node) {
		v, err := strconv.ParseInt(n.Value, 10, 64)
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || v < least || v > most {
			r.fail(n, "%s is %.40q, want a whole number from %d to %d", what, n.Value, least, most)
			return
		}
		to(v)
	}
}

func (r *reader) fraction(what string, most float64, to *float64) field {
	return func(n *yaml.Node) {
		v, err := strconv.ParseFloat(n.Value, 64)
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" && n.Tag != "!!float" || err != nil || !(v >= 0 && v <= most) {
			r.fail(n, "%s is %.40q, want a number from 0 to %g", what, n.Value, most)
			return
		}
		*to = v
	}
}

func (r *reader) duration(what string, least, most time.Duration, to *time.Duration) field {
	return func(n *yaml.Node) {
		v, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || v < least || v > most {
			r.fail(n, "%s is %.40q, want a time from %v to %v, such as \"30s\"", what, n.Value, least, most)
			return
		}
		*to = v
	}
}

// list reads each item of a list that has at least one.
func (r *reader) list(what string, item field) field {
	return func(n *yaml.Node) {
		if n.Kind != yaml.SequenceNode {
			r.fail(n, "%s is not a list", what)
			return
		}
		if len(n.Content) == 0 {
			r.fail(n, "%s is an empty list; leave it out", what)
		}
		for _, c := range n.Content {
			item(c)
		}
	}
}
