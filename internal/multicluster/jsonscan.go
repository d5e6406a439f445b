package multicluster

// The functions of this file read selected parts of JSON in place. They refuse ambiguous input: they match keys exactly,
// as Kubernetes does and encoding/json does not, and they refuse duplicate keys. They require input that json.Valid
// accepts, and may panic otherwise.

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// jsonMembers calls f for each member of a JSON object and returns its first error. A duplicate key is an error.
// null counts as an object without members.
func jsonMembers(what string, b []byte, f func(key string, value []byte) error) error {
	i := skipSpace(b, 0)
	if string(b[i:min(len(b), i+4)]) == "null" {
		return nil
	}
	if b[i] != '{' {
		return fmt.Errorf("%s is not an object", what)
	}
	var few [16]string
	seen := few[:0]
	var many map[string]bool
	for i = skipSpace(b, i+1); b[i] != '}'; {
		end := valueEnd(b, i)
		var key string
		if err := jsonText("a key of "+what, b[i:end], &key); err != nil {
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
		i = skipSpace(b, skipSpace(b, end)+1) // the colon
		end = valueEnd(b, i)
		if err := f(key, b[i:end]); err != nil {
			return err
		}
		if i = skipSpace(b, end); b[i] == ',' {
			i = skipSpace(b, i+1)
		}
	}
	return nil
}

// jsonTexts reads members of a JSON object that are strings, and calls f for each of the others; f may be nil.
func jsonTexts(what string, b []byte, texts map[string]*string, f func(key string, value []byte) error) error {
	return jsonMembers(what, b, func(key string, value []byte) error {
		switch to := texts[key]; {
		case to != nil:
			return jsonText(key, value, to)
		case f != nil:
			return f(key, value)
		}
		return nil
	})
}

// jsonItems calls f for each item of a JSON list; null and a missing list have none.
func jsonItems(what string, b []byte, f func(item []byte) error) error {
	if len(b) == 0 || string(b) == "null" {
		return nil
	}
	if b[0] != '[' {
		return fmt.Errorf("%s is not a list", what)
	}
	for i := skipSpace(b, 1); b[i] != ']'; {
		end := valueEnd(b, i)
		if err := f(b[i:end]); err != nil {
			return err
		}
		if i = skipSpace(b, end); b[i] == ',' {
			i = skipSpace(b, i+1)
		}
	}
	return nil
}

// jsonText reads a JSON string; null leaves it empty.
func jsonText(what string, b []byte, to *string) error {
	if string(b) == "null" {
		return nil
	}
	if len(b) == 0 || b[0] != '"' || json.Unmarshal(b, to) != nil {
		return fmt.Errorf("%s is not a string", what)
	}
	return nil
}

// jsonTextMap reads a JSON object of strings.
func jsonTextMap(what string, b []byte, to *map[string]string) error {
	*to = map[string]string{}
	return jsonMembers(what, b, func(key string, value []byte) error {
		var s string
		if err := jsonText(what+"["+strconv.Quote(key)+"]", value, &s); err != nil {
			return err
		}
		(*to)[key] = s
		return nil
	})
}

// skipSpace returns the index of the first byte at or after i that is not white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// valueEnd returns the index after the valid JSON value that begins at i.
func valueEnd(b []byte, i int) int {
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
