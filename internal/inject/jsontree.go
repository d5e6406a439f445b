package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strings"
	"unicode/utf8"
)

// maxDepth is the maximal nesting depth, several times what a pod needs.
const maxDepth = 100

// decode parses one JSON object into maps, lists, strings, [json.Number], booleans and nil. A duplicate key
// is an error, because two readers could use different values.
func decode(b []byte) (map[string]any, error) {
	if !utf8.Valid(b) {
		return nil, errors.New("it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err != nil {
		return nil, jsonError(err)
	}
	root, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("it is not a JSON object")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is data after the JSON object")
	}
	return root, nil
}

// jsonError converts a JSON error to plain wording.
func jsonError(err error) error {
	s, ok := errors.AsType[*json.SyntaxError](err)
	// After More, a decoder reports the end of its input as a syntax error, which only the text tells from another one.
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || ok && s.Error() == "unexpected end of JSON input" {
		return errors.New("the JSON is incomplete")
	}
	if ok {
		return fmt.Errorf("not JSON at byte %d", s.Offset)
	}
	return err
}

func decodeValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("its nesting is deeper than %d", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		m := map[string]any{}
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			key, ok := k.(string)
			if !ok {
				return nil, errors.New("a key is not a string")
			}
			if _, twice := m[key]; twice {
				return nil, fmt.Errorf("the key %.60q occurs twice", key)
			}
			if m[key], err = decodeValue(d, depth+1); err != nil {
				return nil, err
			}
		}
		_, err := d.Token()
		return m, err
	case json.Delim('['):
		l := []any{}
		for d.More() {
			v, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			l = append(l, v)
		}
		_, err := d.Token()
		return l, err
	}
	return t, nil
}

// toTree converts v to the form that decode returns.
func toTree(v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // the adapter's parts contain only strings, numbers and lists
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	t, err := decodeValue(d, 0)
	if err != nil {
		panic(err)
	}
	return t
}

// fieldReader reads fields of objects and records the first one of a wrong type. As in the API server, null means
// absent.
type fieldReader struct{ problem string }

func (f *fieldReader) fail(where, key, kind string) {
	if f.problem == "" {
		f.problem = fmt.Sprintf("%s is not %s", strings.TrimPrefix(where+"."+key, "."), kind)
	}
}

func (f *fieldReader) object(m map[string]any, where, key string) map[string]any {
	o, ok := m[key].(map[string]any)
	if !ok && m[key] != nil {
		f.fail(where, key, "an object")
	}
	return o
}

// objects returns a list of objects.
func (f *fieldReader) objects(m map[string]any, where, key string) []map[string]any {
	l, ok := m[key].([]any)
	if !ok && m[key] != nil {
		f.fail(where, key, "a list")
	}
	all := make([]map[string]any, len(l))
	for i, v := range l {
		if all[i], ok = v.(map[string]any); !ok {
			f.fail(where, fmt.Sprintf("%s[%d]", key, i), "an object")
		}
	}
	return all
}

func (f *fieldReader) text(m map[string]any, where, key string) string {
	s, ok := m[key].(string)
	if !ok && m[key] != nil {
		f.fail(where, key, "a string")
	}
	return s
}

func (f *fieldReader) flag(m map[string]any, where, key string) bool {
	b, ok := m[key].(bool)
	if !ok && m[key] != nil {
		f.fail(where, key, "true or false")
	}
	return b
}

// strings returns an object with string values, such as labels.
func (f *fieldReader) strings(m map[string]any, where, key string) map[string]string {
	all := map[string]string{}
	for k, v := range f.object(m, where, key) {
		s, ok := v.(string)
		if !ok {
			f.fail(where, fmt.Sprintf("%s[%.80q]", key, k), "a string")
		}
		all[k] = s
	}
	return all
}

// defaulted lists the fields that the API server adds to the adapter's parts.
var defaulted = map[string]bool{
	"apiVersion":               true,
	"defaultMode":              true,
	"imagePullPolicy":          true,
	"optional":                 true,
	"procMount":                true,
	"successThreshold":         true,
	"terminationMessagePath":   true,
	"terminationMessagePolicy": true,
	"timeoutSeconds":           true,
}

// containsFields reports whether has equals want, except for the fields that the API server adds.
func containsFields(has, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		h, ok := has.(map[string]any)
		for k, v := range want {
			ok = ok && containsFields(h[k], v)
		}
		for k := range h {
			_, present := want[k]
			ok = ok && (present || defaulted[k])
		}
		return ok
	case []any:
		h, ok := has.([]any)
		ok = ok && len(h) == len(want)
		for i := 0; ok && i < len(want); i++ {
			ok = containsFields(h[i], want[i])
		}
		return ok
	}
	switch has.(type) {
	case map[string]any, []any:
		return false // such values cannot be compared with ==
	}
	return has == want
}

// suffixes maps the suffixes of quantities to powers.
var suffixes = map[string]struct{ base, exponent int64 }{
	"n": {
		10,
		-9,
	}, "u": {10, -6}, "m": {10, -3}, "": {10, 0}, "k": {10, 3}, "M": {10, 6}, "G": {10, 9}, "T": {10, 12}, "P": {10, 15}, "E": {10, 18},
	"Ki": {2, 10}, "Mi": {2, 20}, "Gi": {2, 30}, "Ti": {2, 40}, "Pi": {2, 50}, "Ei": {2, 60},
}

// quantity parses a Kubernetes quantity, which may be a string or a number. It returns nil if v is not a
// quantity.
func quantity(v any) *big.Rat {
	s, ok := v.(string)
	if n, number := v.(json.Number); number {
		s, ok = n.String(), true
	}
	if !ok || len(s) > 40 {
		return nil
	}
	digits := strings.TrimRight(s, "numkMGTPEi")
	suffix, known := suffixes[s[len(digits):]]
	if digits == "" || strings.Trim(digits, "0123456789.") != "" || !known {
		return nil // exponents are not needed here, and could be huge
	}
	q, ok := new(big.Rat).SetString(digits)
	if !ok {
		return nil
	}
	power := new(big.Int).Exp(big.NewInt(suffix.base), big.NewInt(max(suffix.exponent, -suffix.exponent)), nil)
	if suffix.exponent < 0 {
		return q.Quo(q, new(big.Rat).SetInt(power))
	}
	return q.Mul(q, new(big.Rat).SetInt(power))
}
