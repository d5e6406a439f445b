package config

import (
	"bytes"
	"cmp"
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

// maxSize is the largest configuration or kubeconfig in bytes, which is the limit of a ConfigMap.
const maxSize = 1 << 20

// Diagnostic is one error or warning about a file.
type Diagnostic struct {
	Line    int    `json:"line"` // from 1; 0: the whole file
	Column  int    `json:"column"`
	Message string `json:"message"`
}

// String returns "line:column: message".
func (f Diagnostic) String() string {
	if f.Line == 0 {
		return f.Message
	}
	return fmt.Sprintf("%d:%d: %s", f.Line, f.Column, f.Message)
}

// InvalidError is the error of a refused file. It has all errors in the order of their lines.
type InvalidError struct {
	Diagnostics []Diagnostic
}

// Error returns one finding per line.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Diagnostics))
	for i, f := range e.Diagnostics {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// yamlReader collects errors and warnings while it reads a YAML tree.
type yamlReader struct {
	diagnostics []Diagnostic
	warnings    []Diagnostic
	secret      bool // the file holds credentials, so messages must not contain its text
}

func (r *yamlReader) fail(n *yaml.Node, format string, args ...any) {
	f := Diagnostic{Message: fmt.Sprintf(format, args...)}
	if n != nil {
		f.Line, f.Column = n.Line, n.Column
	}
	r.diagnostics = append(r.diagnostics, f)
}

func (r *yamlReader) warn(line int, format string, args ...any) {
	r.warnings = append(r.warnings, Diagnostic{Line: line, Column: 1, Message: fmt.Sprintf(format, args...)})
}

// result returns the collected errors in the order of their lines, or nil.
func (r *yamlReader) result() error {
	if len(r.diagnostics) == 0 {
		return nil
	}
	slices.SortStableFunc(r.diagnostics, func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return &InvalidError{r.diagnostics}
}

// root parses the file, which must be one YAML document. It returns nil on failure.
func (r *yamlReader) root(b []byte) *yaml.Node {
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
		r.fail(&second, "a second document begins here; the file must be one document")
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

// syntax records a syntax error with the parser's line. The parser reports no column.
func (r *yamlReader) syntax(err error) {
	m := yamlLine.FindStringSubmatch(err.Error())
	f := Diagnostic{Message: "not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	if len(m) == 2 && m[1] != "" {
		f.Line, _ = strconv.Atoi(m[1])
		f.Column, f.Message = 1, "not YAML: "+strings.TrimPrefix(err.Error(), m[0])
	}
	r.diagnostics = append(r.diagnostics, f)
}

// aliases refuses tags and anchors. Anchors can make a small file expand to a large one.
func (r *yamlReader) aliases(n *yaml.Node) (found bool) {
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

// fieldFunc reads the value of one key.
type fieldFunc func(n *yaml.Node)

// mapping reads a mapping. It refuses duplicate keys and keys that are not in fields. It returns the nodes of
// the keys, or nil if n is not a mapping.
func (r *yamlReader) mapping(n *yaml.Node, what string, fields map[string]fieldFunc) map[string]*yaml.Node {
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
			r.fail(key, "%s has a key that is not a string", what)
		case seen[key.Value] != nil:
			r.fail(key, "%s has %s twice", what, key.Value)
		case !known && r.secret && forbiddenFieldReason(key.Value) == "":
			r.fail(key, "%s has a field here that is not allowed", what)
		case !known:
			why := forbiddenFieldReason(key.Value)
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

// forbiddenFieldReason returns why a field that other programs support is refused here, or "".
func forbiddenFieldReason(field string) string {
	switch field {
	case "exec", "auth-provider", "authProvider":
		return ": the adapter runs no program to get a credential"
	case "proxy-url", "proxyURL", "proxyUrl":
		return ": the adapter sends a credential only to its cluster"
	case "insecure-skip-tls-verify", "insecureSkipTLSVerify":
		return ": the adapter identifies a cluster by its certificate"
	case "tokenFile", "token", "client-certificate", "client-key", "certificate-authority", "certFile", "keyFile":
		return ": a credential must be the content of its Secret, not a path"
	case "server":
		return ": the address comes from the Secret, or from servers"
	}
	return ""
}

// text returns a reader of a string.
func (r *yamlReader) text(what string, to *string) fieldFunc {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
			r.fail(n, "%s is not a string", what)
			return
		}
		*to = n.Value
	}
}

// name returns a reader of a string that matches form.
func (r *yamlReader) name(what string, form *regexp.Regexp, longest int, want string, to *string) fieldFunc {
	return func(n *yaml.Node) {
		var s string
		bad := len(r.diagnostics)
		if r.text(what, &s)(n); len(r.diagnostics) > bad {
			return
		}
		if len(s) > longest || !form.MatchString(s) {
			r.fail(n, "%s %.60q is not %s", what, s, want)
			return
		}
		*to = s
	}
}

// enum returns a reader of one of the given words.
func enum[T ~string](r *yamlReader, what string, to *T, words ...T) fieldFunc {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" || !slices.Contains(words, T(n.Value)) {
			r.fail(n, "%s is %.40q, want one of %v", what, n.Value, words)
			return
		}
		*to = T(n.Value)
	}
}

func (r *yamlReader) boolean(what string, to *bool) fieldFunc {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Value != "true" && n.Value != "false" {
			r.fail(n, "%s is %.40q, want true or false", what, n.Value)
			return
		}
		*to = n.Value == "true"
	}
}

func (r *yamlReader) number(what string, least, most int64, to func(int64)) fieldFunc {
	return func(n *yaml.Node) {
		v, err := strconv.ParseInt(n.Value, 10, 64)
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || v < least || v > most {
			r.fail(n, "%s is %.40q, want a whole number from %d to %d", what, n.Value, least, most)
			return
		}
		to(v)
	}
}

func (r *yamlReader) fraction(what string, most float64, to *float64) fieldFunc {
	return func(n *yaml.Node) {
		v, err := strconv.ParseFloat(n.Value, 64)
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" && n.Tag != "!!float" || err != nil || !(v >= 0 && v <= most) {
			r.fail(n, "%s is %.40q, want a number from 0 to %g", what, n.Value, most)
			return
		}
		*to = v
	}
}

func (r *yamlReader) duration(what string, least, most time.Duration, to *time.Duration) fieldFunc {
	return func(n *yaml.Node) {
		v, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || v < least || v > most {
			r.fail(n, "%s is %.40q, want a duration from %v to %v, such as \"30s\"", what, n.Value, least, most)
			return
		}
		*to = v
	}
}

// list returns a reader that calls item for each element of a list. The list must not be empty.
func (r *yamlReader) list(what string, item fieldFunc) fieldFunc {
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
