// Package jsonscan reads selected parts of JSON in place. It refuses ambiguous input: it matches keys
// exactly, as Kubernetes does and encoding/json does not, and it refuses duplicate keys.
//
// All functions require input that json.Valid accepts, and may panic otherwise. Their own errors are one
// sentence that contains at most one key of the input.
package jsonscan

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Members calls f for each member of a JSON object and returns its first error. A duplicate key is an error.
// null counts as an object without members.
func Members(what string, b []byte, f func(key string, value []byte) error) error {
	i := space(b, 0)
	if string(b[i:min(len(b), i+4)]) == "null" {
		return nil
	}
	if b[i] != '{' {
		return fmt.Errorf("%s is not an object", what)
	}
	var few [16]string
	seen := few[:0]
	var many map[string]bool
	for i = space(b, i+1); b[i] != '}'; {
		end := after(b, i)
		var key string
		if err := Text("a key of "+what, b[i:end], &key); err != nil {
			return err
		}
		twice := many[key]
		for _, s := range seen {
			twice = twice || s == key
		}
		if twice {
			return fmt.Errorf("%s has %.60q twice", what, key)
		}
		if len(seen) < cap(seen) {
			seen = append(seen, key)
		} else {
			if many == nil {
				many = map[string]bool{}
			}
			many[key] = true
		}
		i = space(b, space(b, end)+1) // the colon
		end = after(b, i)
		if err := f(key, b[i:end]); err != nil {
			return err
		}
		if i = space(b, end); b[i] == ',' {
			i = space(b, i+1)
		}
	}
	return nil
}

// Items calls f for each item of a JSON list; null has none.
func Items(what string, b []byte, f func(item []byte) error) error {
	if string(b) == "null" {
		return nil
	}
	if b[0] != '[' {
		return fmt.Errorf("%s is not a list", what)
	}
	for i := space(b, 1); b[i] != ']'; {
		end := after(b, i)
		if err := f(b[i:end]); err != nil {
			return err
		}
		if i = space(b, end); b[i] == ',' {
			i = space(b, i+1)
		}
	}
	return nil
}

// Text reads a JSON string; null leaves it empty.
func Text(what string, b []byte, to *string) error {
	if string(b) == "null" {
		return nil
	}
	if len(b) == 0 || b[0] != '"' || json.Unmarshal(b, to) != nil {
		return fmt.Errorf("%s is not a text", what)
	}
	return nil
}

// Texts reads a JSON object of strings.
func Texts(what string, b []byte, to *map[string]string) error {
	*to = map[string]string{}
	return Members(what, b, func(key string, value []byte) error {
		var s string
		if err := Text(what+"["+strconv.Quote(key)+"]", value, &s); err != nil {
			return err
		}
		(*to)[key] = s
		return nil
	})
}

// space returns the index of the first byte at or after i that is not white space.
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// after returns the index after the valid JSON value that begins at i.
func after(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // a number or literal at the end of its container
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return i
}
