package access

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A Role is the name of a Kubernetes ClusterRole.
type Role string

var (
	roleForm  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9:._-]*[A-Za-z0-9])?$`)
	labelForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) // RFC 1123
)

// ParseRole returns s as a Role. The name must be a valid path segment.
func ParseRole(s string) (Role, error) {
	if len(s) > 253 || !roleForm.MatchString(s) || strings.Contains(s, "..") {
		return "", fmt.Errorf("%.60q is not the name of a ClusterRole", s)
	}
	return Role(s), nil
}

// ParseNamespaces checks a list of 1 to 50 different DNS-1123 labels and returns it sorted.
func ParseNamespaces(names []string) ([]string, error) {
	if len(names) == 0 || len(names) > 50 {
		return nil, fmt.Errorf("%d namespaces; a rule must list 1 to 50", len(names))
	}
	out := slices.Sorted(slices.Values(names))
	for i, n := range out {
		if !labelForm.MatchString(n) {
			return nil, fmt.Errorf("%.70q is not the name of a namespace", n)
		}
		if i > 0 && n == out[i-1] {
			return nil, fmt.Errorf("namespace %q is listed twice", n)
		}
	}
	return out, nil
}

// A Grant is one rule of the tailnet policy that matches a caller. It gives roles for a period.
type Grant struct {
	Name        string // chosen in the policy, so that a caller can name the rule; may be empty
	Binds       Binds  // never empty in a valid rule
	Period      time.Duration
	Priority    int  // the highest priority wins
	AllowTagged bool // also admits tagged nodes
	AllowShared bool // also admits nodes shared from another tailnet

	ReasonRequired bool // a login must give a reason

	Record []string      // streams through the access proxy that must be recorded, in the order of RecordedStreams
	OnUse  bool          // a request through the access proxy begins the sign-in
	Idle   time.Duration // how long such a sign-in lasts without use; 0 without OnUse

	Token *TokenRule // the OIDC token that a login must bring; nil: none
}

// same reports whether g and h give the same roles with the same name, period, priority, token and first use.
func (g Grant) same(h Grant) bool {
	return g.Name == h.Name && g.Period == h.Period && g.Priority == h.Priority && g.Binds.Equal(h.Binds) && slices.Equal(g.Record, h.Record) &&
		g.Token.equal(h.Token) && g.OnUse == h.OnUse && g.Idle == h.Idle
}

// admits reports whether the grant applies to the caller's kind of device.
func (g Grant) admits(c Caller) bool {
	return (!c.Shared || g.AllowShared) && (!c.Tagged() || g.AllowTagged)
}

// Limits of the rules that the server accepts from a policy.
const (
	maxRules    = 64
	maxRuleSize = 4 << 10
)

// ParseGrant decodes one rule strictly. It rejects a misspelt, repeated or mistyped field, a
// different letter case, and any text after the rule. Otherwise a typing error such as "namespace"
// would widen a grant to the whole cluster. The error names the field.
func ParseGrant(raw []byte) (Grant, error) {
	var g Grant
	var short bindFields // the fields role, namespaces and namespaceSelector of the rule itself
	err := eachField(raw, func(field string, value json.Token, d *json.Decoder) error {
		if isShort, err := short.set(field, value, d); isShort {
			return err
		}
		return g.set(field, value, d)
	}, "period")
	switch {
	case err != nil:
	case g.Binds != nil && short.seen != "":
		err = fmt.Errorf("%q is not possible together with \"bind\"", short.seen)
	case g.Binds == nil:
		var b Bind
		if b, err = short.bind(); err == nil {
			g.Binds = Binds{b}
		}
	}
	if err == nil {
		err = g.checkOnUse()
	}
	return g, err
}

// eachField calls set for each field of one JSON object, with the first token of its value. It
// returns an error for a repeated or missing field and for text after the object.
func eachField(raw []byte, set func(field string, value json.Token, d *json.Decoder) error, required ...string) error {
	if len(raw) > maxRuleSize {
		return fmt.Errorf("the rule has %d bytes, more than %d", len(raw), maxRuleSize)
	}
	if !utf8.Valid(raw) {
		return fmt.Errorf("the rule is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("the rule is not a JSON object")
	}
	if err := eachFieldOf(d, set, required...); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("there is text after the rule")
	}
	return nil
}

// eachFieldOf is eachField for the rest of an object whose opening brace was read.
func eachFieldOf(d *json.Decoder, set func(field string, value json.Token, d *json.Decoder) error, required ...string) error {
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return fmt.Errorf("the rule is not JSON: %w", err)
		}
		field := t.(string) // Token returns a name here, because More returned true
		if seen[field] {
			return fmt.Errorf("the field %.60q occurs twice", field)
		}
		seen[field] = true
		value, err := d.Token()
		if err != nil {
			return fmt.Errorf("%.60q: not JSON: %w", field, err)
		}
		if err := set(field, value, d); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return fmt.Errorf("the rule is not JSON: %w", err)
	}
	for _, field := range required {
		if !seen[field] {
			return fmt.Errorf("%q is missing", field)
		}
	}
	return nil
}

// decodeList decodes a list of strings whose first token is value.
func decodeList(value json.Token, d *json.Decoder) (items []string, err error) {
	if value != json.Delim('[') {
		return nil, fmt.Errorf("not a list")
	}
	for d.More() {
		t, err := d.Token()
		s, ok := t.(string)
		if err != nil || !ok {
			return nil, fmt.Errorf("contains a value that is not a string")
		}
		items = append(items, s)
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	return items, nil
}

// set decodes the value of one field.
func (g *Grant) set(field string, value json.Token, d *json.Decoder) (err error) {
	switch field {
	case "name":
		if g.Name, _ = value.(string); !labelForm.MatchString(g.Name) {
			return fmt.Errorf(`"name" is not a name such as "day-work"`)
		}
	case "bind":
		if g.Binds, err = decodeBinds(value, d); err != nil {
			return fmt.Errorf(`"bind": %w`, err)
		}
	case "period":
		s, ok := value.(string)
		if !ok {
			return fmt.Errorf(`"period" is not a string such as "8h"`)
		}
		if g.Period, err = time.ParseDuration(s); err != nil {
			return fmt.Errorf(`"period": %.60q is not a duration such as "90m" or "8h"`, s)
		}
	case "priority":
		n, ok := value.(json.Number)
		if !ok {
			return fmt.Errorf(`"priority" is not a number`)
		}
		p, err := strconv.ParseInt(n.String(), 10, 32)
		if err != nil {
			return fmt.Errorf(`"priority": %.60s is not a whole number of 32 bits`, n)
		}
		g.Priority = int(p)
	case "reason":
		if value != "required" {
			return fmt.Errorf(`"reason" is not "required"`)
		}
		g.ReasonRequired = true
	case "record":
		if g.Record, err = decodeRecord(value, d); err != nil {
			return fmt.Errorf(`"record": %w`, err)
		}
	case "oidc":
		if g.Token, err = decodeTokenRule(value, d); err != nil {
			return fmt.Errorf(`"oidc": %w`, err)
		}
	case "idle":
		s, _ := value.(string)
		if g.Idle, err = time.ParseDuration(s); err != nil || g.Idle <= 0 {
			return fmt.Errorf(`"idle": %.60q is not a duration such as "30m"`, s)
		}
	case "allowTagged", "allowShared", "onUse":
		b, ok := value.(bool)
		if !ok {
			return fmt.Errorf("%q is not true or false", field)
		}
		*map[string]*bool{"allowTagged": &g.AllowTagged, "allowShared": &g.AllowShared, "onUse": &g.OnUse}[field] = b
	default:
		return fmt.Errorf("%.60q is not a field of a rule", field)
	}
	return nil
}
