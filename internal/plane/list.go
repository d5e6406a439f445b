package plane

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/strictjson"
)

// The number of objects in one page.
const (
	defaultLimit = 100
	maxLimit     = 500
)

// A cursor holds at most maxSorted bytes of the value that the list is sorted by. This bounds the cursor, whatever the length of an
// object's name; maxCursor is that bound in bytes.
const (
	maxSorted = 256
	maxCursor = 8 << 10
)

// ListRequest selects one page of a list. All fields are optional.
type ListRequest struct {
	Q      Text      `json:"-" query:"q" doc:"only entries with this text in a column, in any letter case"`
	State  Text      `json:"-" query:"state" doc:"only entries in this state"`
	Sort   Text      `json:"-" query:"sort" doc:"a column to sort by, with a - prefix for descending order (default id)"`
	Limit  PageLimit `json:"-" query:"limit" doc:"maximum number of entries, 1 to 500 (default 100)"`
	Cursor Cursor    `json:"-" query:"cursor" doc:"meta.page.next of the previous page, with the same other parameters"`
}

// SetLimit sets the maximum number of entries.
func (r *ListRequest) SetLimit(n int) { r.Limit = PageLimit(n) }

// Text is a request parameter: at most 512 bytes of UTF-8.
type Text string

// MarshalText implements [encoding.TextMarshaler].
func (t Text) MarshalText() ([]byte, error) { return []byte(t), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (t *Text) UnmarshalText(b []byte) error {
	switch {
	case len(b) > 512:
		return fmt.Errorf("it has %d bytes, more than 512", len(b))
	case !utf8.Valid(b):
		return fmt.Errorf("it is not UTF-8")
	}
	*t = Text(b)
	return nil
}

// Cursor is a cursor as the client received it.
type Cursor string

// MarshalText implements [encoding.TextMarshaler].
func (m Cursor) MarshalText() ([]byte, error) { return []byte(m), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (m *Cursor) UnmarshalText(b []byte) error {
	if len(b) > maxCursor {
		return fmt.Errorf("it has %d bytes, more than any cursor of this server", len(b))
	}
	*m = Cursor(b)
	return nil
}

// PageLimit is a number of items; 0 means not set.
type PageLimit int

// MarshalText implements [encoding.TextMarshaler].
func (c PageLimit) MarshalText() ([]byte, error) { return formatCount(int(c)), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (c *PageLimit) UnmarshalText(b []byte) (err error) {
	*c, err = parseCount[PageLimit](b, maxLimit)
	return err
}

// parseCount parses a number from 1 to limit.
func parseCount[N ~int](b []byte, limit int) (N, error) {
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 1 || n > limit || b[0] == '+' {
		return 0, fmt.Errorf("%.20q is not a number from 1 to %d", b, limit)
	}
	return N(n), nil
}

// formatCount formats a number for [parseCount], or returns nil for 0.
func formatCount(n int) []byte {
	if n == 0 {
		return nil
	}
	return strconv.AppendInt(nil, int64(n), 10)
}

// table defines how clients search and sort a kind of objects. Columns returns the columns of an object by name, with "" for an unknown value.
// Every state must be in States.
type table[T Object] struct {
	Kind    Kind
	Name    string // the kind of the list response
	Columns func(T) map[string]string
	State   func(T) string
	States  []string
}

// Page says where a list continues.
type Page struct {
	Next  string `json:"next" doc:"the cursor of the next page; empty: none"`
	Limit int    `json:"limit"`
	Total *int   `json:"total" doc:"number of matching entries that the caller may see; null: not counted"`
}

// listCursor marks the end of a page. It contains the parameters of the query, so it is not valid for another list. It stores the position as a
// value, so objects that appear or vanish before it do not shift the next page.
type listCursor struct {
	Kind  Kind   `json:"k"`
	Only  string `json:"f,omitempty"`
	Q     string `json:"q,omitempty"`
	State string `json:"s,omitempty"`
	Sort  string `json:"o,omitempty"`
	Value string `json:"v,omitempty"`
	ID    string `json:"i"`
}

// page selects one page of the objects that the caller may see. only describes in words how the caller has filtered visible.
func (t table[T]) page(visible []T, only string, req ListRequest) ([]T, Page, error) {
	limit := cmp.Or(int(req.Limit), defaultLimit)
	order, err := t.order(string(req.Sort))
	if err != nil {
		return nil, Page{}, err
	}
	if req.State != "" && !slices.Contains(t.States, string(req.State)) {
		return nil, Page{}, invalidField("state", fmt.Sprintf("%.40q is not a state of this list.", req.State), "Use one of: "+strings.Join(t.States, ", ")+".")
	}
	type place struct {
		value  string
		object T
	}
	fit := make([]place, 0, len(visible))
	for _, o := range visible {
		if req.State != "" && t.State(o) != string(req.State) {
			continue
		}
		var columns map[string]string // only if the request searches or sorts by them
		if req.Q != "" || order.column != "id" {
			columns = t.Columns(o)
		}
		if matches(o.Key(), columns, string(req.Q)) {
			fit = append(fit, place{order.value(columns), o})
		}
	}
	slices.SortFunc(fit, func(a, b place) int { return order.compare(a.value, a.object.Key(), b.value, b.object.Key()) })
	page := Page{Limit: limit, Total: new(len(fit))}
	requested := listCursor{Kind: t.Kind, Only: only, Q: string(req.Q), State: string(req.State), Sort: string(req.Sort)}
	if req.Cursor != "" {
		at, err := parseCursor(string(req.Cursor), requested)
		if err != nil {
			return nil, Page{}, problem.New(problem.BadRequest, "The cursor is not valid for this list: "+err.Error()+".", "Request the first page, without a cursor.")
		}
		from, _ := slices.BinarySearchFunc(fit, at, func(p place, at listCursor) int {
			if order.compare(p.value, p.object.Key(), at.Value, at.ID) <= 0 {
				return -1
			}
			return 1
		})
		fit = fit[from:]
	}
	if len(fit) > limit {
		fit = fit[:limit]
		requested.Value, requested.ID = fit[limit-1].value, fit[limit-1].object.Key()
		page.Next = requested.String()
	}
	objects := make([]T, 0, len(fit))
	for _, p := range fit {
		objects = append(objects, p.object)
	}
	return objects, page, nil
}

// matches reports whether the id or a column of an object contains q, in any letter case.
func matches(id string, columns map[string]string, q string) bool {
	q = strings.ToLower(q)
	for _, value := range columns {
		if strings.Contains(strings.ToLower(value), q) {
			return true
		}
	}
	return strings.Contains(strings.ToLower(id), q)
}

// order sorts by one column, then by id. Objects without a value come last in both directions.
type order struct {
	column     string // "id": only by id
	descending bool
}

func (t table[T]) order(sort string) (order, error) {
	name, descending := strings.CutPrefix(cmp.Or(sort, "id"), "-")
	columns := t.Columns(*new(T))
	if _, ok := columns[name]; !ok && name != "id" {
		names := slices.Sorted(maps.Keys(columns))
		return order{}, invalidField("sort", fmt.Sprintf("This list has no column %.40q.", name), "Use one of: id, "+strings.Join(names, ", ")+".")
	}
	return order{name, descending}, nil
}

// value returns the beginning of the value to sort by.
func (o order) value(columns map[string]string) string {
	v := columns[o.column]
	return strings.ToValidUTF8(v[:min(len(v), maxSorted)], "")
}

func (o order) compare(a, aid, b, bid string) int {
	if (a == "") != (b == "") {
		return cmp.Compare(len(b), len(a))
	}
	way := 1
	if o.descending {
		way = -1
	}
	return way * cmp.Or(strings.Compare(a, b), strings.Compare(aid, bid))
}

// String returns the cursor as clients receive it. Clients must treat it as opaque.
func (c listCursor) String() string {
	return base64.RawURLEncoding.EncodeToString(encode(c))
}

func parseCursor(s string, requested listCursor) (listCursor, error) {
	var at listCursor
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return at, fmt.Errorf("it was changed")
	}
	if err := strictjson.UnmarshalKnown(b, &at); err != nil || at.String() != s {
		return at, fmt.Errorf("it was changed")
	}
	requested.Value, requested.ID = at.Value, at.ID
	if at != requested {
		return at, fmt.Errorf("it belongs to a list with different parameters")
	}
	return at, nil
}

// invalidField returns a validation error about a parameter or a body field.
func invalidField(field, message string, advice ...string) error {
	p := problem.New(problem.Validation, message, advice...)
	p.Field = field
	return p
}

// sortableTime formats a time so that text order is time order. It returns "" for nil and for the zero time.
func sortableTime(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000000000Z")
}

// sortableNumber formats a number that is not negative so that text order is number order. It returns "" for nil.
func sortableNumber(n *int) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%010d", *n)
}

// orZero returns *p, or the zero value for nil.
func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
