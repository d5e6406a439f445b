package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of one message: bytes and nesting depth.
const (
	maxMessage = 1 << 20
	maxDepth   = 64
)

// JSON-RPC error codes for text that is not a message, and for an invalid message.
const (
	codeParse   = -32700
	codeInvalid = -32600
)

// rpcError is the reason for rejecting a message before the SDK reads it.
type rpcError struct {
	code int
	text string
	id   json.RawMessage // of the message, if it is certain
}

func (f *rpcError) Error() string { return f.text }

// response returns the JSON-RPC error response.
func (f *rpcError) response() []byte {
	id := f.id
	if id == nil {
		id = json.RawMessage("null")
	}
	type refusal struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	b, _ := json.Marshal(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   refusal         `json:"error"`
	}{"2.0", id, refusal{f.code, f.text}}) // cannot fail: id was read as JSON
	return b
}

// message is a JSON-RPC message, read strictly.
type message struct {
	method string          // "": a response
	id     json.RawMessage // nil: none
	params json.RawMessage // nil: none; otherwise an object
}

var members = []string{"jsonrpc", "id", "method", "params", "result", "error"}

// reserved lists the members of params that the protocol reads. Another letter case is rejected, because some readers would accept it and
// others would not.
var reserved = []string{"_meta", "arguments", "capabilities", "clientInfo", "cursor", "level", "name", "protocolVersion", "requestId", "uri"}

var integer = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,17})$`)

// validID reports whether id is an integer that every reader decodes to the same value. Readers with only floating-point numbers, such as
// the SDK, change integers beyond 2^53.
func validID(id []byte) bool {
	n, err := strconv.ParseInt(string(id), 10, 64)
	return err == nil && integer.Match(id) && string(id) != "-0" && max(n, -n) <= 1<<53
}

// parseMessage parses a message and rejects text that two readers could understand differently (MC-04). It accepts exactly one JSON-RPC object, no
// name that occurs twice in one object in any letter case, and no unknown members.
func parseMessage(b []byte) (message, *rpcError) {
	var m message
	refuse := func(code int, format string, args ...any) (message, *rpcError) {
		return m, &rpcError{code: code, text: fmt.Sprintf(format, args...), id: m.id}
	}
	switch {
	case len(b) > maxMessage:
		return refuse(codeInvalid, "the message has more than %d bytes", maxMessage)
	case !utf8.Valid(b):
		return refuse(codeParse, "the message is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	first, err := d.Token()
	switch {
	case err != nil:
		return refuse(codeParse, "the message is not JSON")
	case first == json.Delim('['):
		return refuse(codeInvalid, "batches are not supported; send one message at a time")
	case first != json.Delim('{'):
		return refuse(codeInvalid, "the message is not an object")
	}
	if err := checkTokens(d, first, 1); err != nil {
		code := codeInvalid
		if errors.Is(err, errNotJSON) {
			code = codeParse
		}
		return refuse(code, "%v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return refuse(codeParse, "there is more data after the message")
	}
	var parts map[string]json.RawMessage // walk has rejected duplicate names
	if err := json.Unmarshal(b, &parts); err != nil {
		return refuse(codeParse, "the message is not JSON")
	}
	if id, ok := parts["id"]; ok {
		if (len(id) == 0 || id[0] != '"') && !validID(id) {
			return refuse(codeInvalid, `"id" is neither text nor a whole number`)
		}
		m.id = id
	}
	for name := range parts {
		if !slices.Contains(members, name) {
			return refuse(codeInvalid, "%.40q is not a member of a message", name)
		}
	}
	if string(parts["jsonrpc"]) != `"2.0"` {
		return refuse(codeInvalid, `"jsonrpc" is not "2.0"`)
	}
	_, result := parts["result"]
	_, failure := parts["error"]
	method, call := parts["method"]
	switch {
	case call && (result || failure), !call && result == failure, !call && m.id == nil, !call && parts["params"] != nil:
		return refuse(codeInvalid, "the message is neither a request nor an answer")
	case call && (json.Unmarshal(method, &m.method) != nil || m.method == ""):
		return refuse(codeInvalid, `"method" is not a name`)
	}
	if params, ok := parts["params"]; ok {
		var of map[string]json.RawMessage
		if len(params) == 0 || params[0] != '{' || json.Unmarshal(params, &of) != nil {
			return refuse(codeInvalid, `"params" is not an object`)
		}
		for name := range of {
			if i := slices.IndexFunc(reserved, func(r string) bool { return strings.EqualFold(r, name) }); i >= 0 && reserved[i] != name {
				return refuse(codeInvalid, "%.40q is not a parameter; use %q", name, reserved[i])
			}
		}
	}
	m.params = parts["params"]
	return m, nil
}

var errNotJSON = errors.New("the message is not JSON")

// checkTokens reads the rest of the value that begins with t.
func checkTokens(d *json.Decoder, t json.Token, depth int) error {
	open, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	if depth > maxDepth {
		return fmt.Errorf("the message is nested deeper than %d levels", maxDepth)
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return errNotJSON
		}
		if open == '{' {
			name, _ := t.(string)
			folded := strings.ToLower(strings.ToUpper(name))
			if seen[folded] {
				return fmt.Errorf("%.40q occurs twice in one object, possibly in different letter cases", name)
			}
			seen[folded] = true
			if t, err = d.Token(); err != nil {
				return errNotJSON
			}
		}
		if err := checkTokens(d, t, depth+1); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return errNotJSON
	}
	return nil
}
