package access

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Selector selects namespaces by their labels. It is a label selector of Kubernetes in its string
// form, as in kubectl get -l, with sorted requirements, so that equal selectors are equal strings.
type Selector string

// Limits of a selector.
const (
	maxSelector     = 256 // bytes
	maxRequirements = 8
)

var (
	labelKeyForm   = regexp.MustCompile(`^(([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	labelValueForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	setForm        = regexp.MustCompile(`^(\S+)\s+(in|notin)\s+\(([^()]*)\)$`)
)

// ParseSelector returns s as a Selector. Requirements are separated by commas and have one of the
// forms "key", "!key", "key=value", "key!=value", "key in (a,b)" and "key notin (a,b)". At least one
// of them must require a label: otherwise the selector would select every namespace without labels.
func ParseSelector(s string) (Selector, error) {
	if len(s) > maxSelector {
		return "", fmt.Errorf("the selector has %d bytes, more than %d", len(s), maxSelector)
	}
	parts := splitRequirements(s)
	if len(parts) > maxRequirements {
		return "", fmt.Errorf("%d requirements, more than %d", len(parts), maxRequirements)
	}
	keys, positive := map[string]bool{}, false
	for i, part := range parts {
		r, err := parseRequirement(strings.TrimSpace(part))
		if err != nil {
			return "", err
		}
		if keys[r.key] {
			return "", fmt.Errorf("the label %q occurs twice", r.key)
		}
		keys[r.key] = true
		positive = positive || r.positive
		parts[i] = r.text
	}
	if !positive {
		return "", errors.New("no requirement demands a label, so namespaces without labels would match")
	}
	slices.SortFunc(parts, func(a, b string) int {
		return strings.Compare(strings.TrimPrefix(a, "!"), strings.TrimPrefix(b, "!"))
	})
	return Selector(strings.Join(parts, ",")), nil
}

// splitRequirements splits s at the commas outside of parentheses.
func splitRequirements(s string) (parts []string) {
	depth, start := 0, 0
	for i := range len(s) {
		switch s[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				parts, start = append(parts, s[start:i]), i+1
			}
		}
	}
	return append(parts, s[start:])
}

// A requirement is one part of a selector.
type requirement struct {
	key, text string
	positive  bool // namespaces without the label do not match
}

func parseRequirement(s string) (r requirement, err error) {
	values, operator := []string(nil), ""
	switch m := setForm.FindStringSubmatch(s); {
	case m != nil:
		r.key, operator = m[1], m[2]
		for v := range strings.SplitSeq(m[3], ",") {
			values = append(values, strings.TrimSpace(v))
		}
		slices.Sort(values)
		values = slices.Compact(values)
		r.text, r.positive = fmt.Sprintf("%s %s (%s)", r.key, operator, strings.Join(values, ",")), operator == "in"
	case strings.Contains(s, "!="):
		key, value, _ := strings.Cut(s, "!=")
		r.key, values = strings.TrimSpace(key), []string{strings.TrimSpace(value)}
		r.text = r.key + "!=" + values[0]
	case strings.Contains(s, "="):
		key, value, _ := strings.Cut(s, "=")
		r.key, values = strings.TrimSpace(key), []string{strings.TrimSpace(value)}
		r.text, r.positive = r.key+"="+values[0], true
	case strings.HasPrefix(s, "!"):
		r.key, r.text = s[1:], s
	default:
		r.key, r.text, r.positive = s, s, true
	}
	if len(r.key) > 253 || !labelKeyForm.MatchString(r.key) || r.key == "in" || r.key == "notin" { // the two words are operators
		return r, fmt.Errorf("%.70q is not the key of a label", r.key)
	}
	for _, v := range values {
		if !labelValueForm.MatchString(v) {
			return r, fmt.Errorf("%.70q is not the value of a label", v)
		}
	}
	return r, nil
}
