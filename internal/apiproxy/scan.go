package apiproxy

import (
	"encoding/json"
	"strconv"
)

// members calls f for each member of a JSON object, of which json.Valid was
// asked. A key that is there twice is refused: the API server matches keys as
// they are written, and so does this. null is an object without members.
func members(what string, b []byte, f func(key string, value []byte) *Refusal) *Refusal {
	i := space(b, 0)
	if string(b[i:min(len(b), i+4)]) == "null" {
		return nil
	}
	if b[i] != '{' {
		return bad("%s is not an object", what)
	}
	var few [16]string
	seen := few[:0]
	var many map[string]bool
	for i = space(b, i+1); b[i] != '}'; {
		end := after(b, i)
		var key string
		if refusal := text("a key of "+what, b[i:end], &key); refusal != nil {
			return refusal
		}
		twice := many[key]
		for _, s := range seen {
			twice = twice || s == key
		}
		if twice {
			return bad("%s has %.60q twice", what, key)
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
		if refusal := f(key, b[i:end]); refusal != nil {
			return refusal
		}
		if i = space(b, end); b[i] == ',' {
			i = space(b, i+1)
		}
	}
	return nil
}

// items calls f for each item of a JSON list; null has none.
func items(what string, b []byte, f func(item []byte) *Refusal) *Refusal {
	if string(b) == "null" {
		return nil
	}
	if b[0] != '[' {
		return bad("%s is not a list", what)
	}
	for i := space(b, 1); b[i] != ']'; {
		end := after(b, i)
		if refusal := f(b[i:end]); refusal != nil {
			return refusal
		}
		if i = space(b, end); b[i] == ',' {
			i = space(b, i+1)
		}
	}
	return nil
}

// text reads a JSON string; null leaves it empty.
func text(what string, b []byte, to *string) *Refusal {
	if string(b) == "null" {
		return nil
	}
	if len(b) == 0 || b[0] != '"' || json.Unmarshal(b, to) != nil {
		return bad("%s is not a text", what)
	}
	return nil
}

// texts reads a JSON object of strings.
func texts(what string, b []byte, to *map[string]string) *Refusal {
	*to = map[string]string{}
	return members(what, b, func(key string, value []byte) *Refusal {
		var s string
		if refusal := text(what+"["+strconv.Quote(key)+"]", value, &s); refusal != nil {
			return refusal
		}
		(*to)[key] = s
		return nil
	})
}

// space returns the index of the first byte at or after i that is no space.
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
				return i // of a number or word at the end of what is around it
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
