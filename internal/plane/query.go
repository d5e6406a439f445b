package plane

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/problem"
)

// How many objects one page has.
const (
	defaultLimit = 100
	maxLimit     = 500
)

// Of a value that is sorted by so many bytes count, so that a cursor has a bound
// that no name which somebody gave an object gets beyond.
const (
	maxSorted = 256
	maxMark   = 8 << 10
)

// A ListRequest asks for one page of a list. All of it may be left out.
type ListRequest struct {
	Q      Text  `json:"-" query:"q" doc:"only what has this text in one of its columns, in any letter case"`
	State  Text  `json:"-" query:"state" doc:"only what is in this state"`
	Sort   Text  `json:"-" query:"sort" doc:"a column, with - before it in descending order; by id without it"`
	Limit  Count `json:"-" query:"limit" doc:"how many at most, 1 to 500; 100 without it"`
	Cursor Mark  `json:"-" query:"cursor" doc:"meta.page.next of the page before, with the same other parameters"`
}

// Text is a parameter of a request: at most 512 bytes of printable text.
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

// A Mark is a cursor, as it was given out.
type Mark string

// MarshalText implements [encoding.TextMarshaler].
func (m Mark) MarshalText() ([]byte, error) { return []byte(m), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (m *Mark) UnmarshalText(b []byte) error {
	if len(b) > maxMark {
		return fmt.Errorf("it has %d bytes, more than any that is given out", len(b))
	}
	*m = Mark(b)
	return nil
}

// A Count is how many of something are asked for; 0: nothing was said.
type Count int

// MarshalText implements [encoding.TextMarshaler].
func (c Count) MarshalText() ([]byte, error) {
	if c == 0 {
		return nil, nil
	}
	return strconv.AppendInt(nil, int64(c), 10), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (c *Count) UnmarshalText(b []byte) error {
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 1 || n > maxLimit || b[0] == '+' {
		return fmt.Errorf("%.20q is not a number from 1 to %d", b, maxLimit)
	}
	*c = Count(n)
	return nil
}

// A Table says how a kind of objects is searched and sorted. A column without a
// value is not known, and no state is one that is not among States.
type Table[T Object] struct {
	Kind    Kind
	Name    string // of a list of them
	Columns map[string]func(T) string
	State   func(T) string
	States  []string
}

// A Page is where a list goes on.
type Page struct {
	Next  string `json:"next" doc:"the cursor of the next page; empty: there is none"`
	Limit int    `json:"limit"`
	Total *int   `json:"total" doc:"how many the caller may see that fit the parameters; null: nobody has counted"`
}

// A cursor is where a page has ended. It holds what was asked for, so that it is
// not taken for another list's; and the place by its value, so that what comes and
// goes before it moves nothing.
type cursor struct {
	Kind  Kind   `json:"k"`
	Only  string `json:"f,omitempty"`
	Q     string `json:"q,omitempty"`
	State string `json:"s,omitempty"`
	Sort  string `json:"o,omitempty"`
	Value string `json:"v,omitempty"`
	ID    string `json:"i"`
}

// page selects one page of those that the caller may see.
// Only says in words which of them the caller has chosen beforehand.
func (t Table[T]) page(visible []T, only string, req ListRequest) ([]T, Page, error) {
	limit := cmp.Or(int(req.Limit), defaultLimit)
	order, err := t.order(string(req.Sort))
	if err != nil {
		return nil, Page{}, err
	}
	if req.State != "" && !slices.Contains(t.States, string(req.State)) {
		return nil, Page{}, Invalid("state", fmt.Sprintf("%.40q is not a state of this list.", req.State), "It has: "+strings.Join(t.States, ", ")+".")
	}
	type place struct {
		value  string
		object T
	}
	fit := make([]place, 0, len(visible))
	for _, o := range visible {
		if (req.State == "" || t.State(o) == string(req.State)) && t.holds(o, string(req.Q)) {
			fit = append(fit, place{order.value(o), o})
		}
	}
	slices.SortFunc(fit, func(a, b place) int { return order.compare(a.value, a.object.Key(), b.value, b.object.Key()) })
	page := Page{Limit: limit, Total: new(len(fit))}
	asked := cursor{Kind: t.Kind, Only: only, Q: string(req.Q), State: string(req.State), Sort: string(req.Sort)}
	if req.Cursor != "" {
		at, err := parseCursor(string(req.Cursor), asked)
		if err != nil {
			return nil, Page{}, problem.New(problem.BadRequest, "The cursor is not one of this list: "+err.Error()+".", "Ask for the first page, without a cursor.")
		}
		from, _ := slices.BinarySearchFunc(fit, at, func(p place, at cursor) int {
			if order.compare(p.value, p.object.Key(), at.Value, at.ID) <= 0 {
				return -1
			}
			return 1
		})
		fit = fit[from:]
	}
	if len(fit) > limit {
		fit = fit[:limit]
		asked.Value, asked.ID = fit[limit-1].value, fit[limit-1].object.Key()
		page.Next = asked.String()
	}
	objects := make([]T, 0, len(fit))
	for _, p := range fit {
		objects = append(objects, p.object)
	}
	return objects, page, nil
}

// holds reports whether one of o's columns has q in it.
func (t Table[T]) holds(o T, q string) bool {
	if q == "" {
		return true
	}
	q = strings.ToLower(q)
	if strings.Contains(strings.ToLower(o.Key()), q) {
		return true
	}
	for _, column := range t.Columns {
		if strings.Contains(strings.ToLower(column(o)), q) {
			return true
		}
	}
	return false
}

// An order is one column, and the id where that says nothing. What has no value
// comes last, whichever way round.
type order[T Object] struct {
	value      func(T) string
	descending bool
}

func (t Table[T]) order(sort string) (order[T], error) {
	name, descending := strings.CutPrefix(sort, "-")
	if sort == "" || name == "id" {
		return order[T]{func(T) string { return "" }, descending}, nil
	}
	value, ok := t.Columns[name]
	if !ok {
		names := slices.Sorted(maps.Keys(t.Columns))
		return order[T]{}, Invalid("sort", fmt.Sprintf("This list has no column %.40q.", name), "It has: id, "+strings.Join(names, ", ")+".")
	}
	return order[T]{func(o T) string {
		v := value(o)
		return strings.ToValidUTF8(v[:min(len(v), maxSorted)], "")
	}, descending}, nil
}

func (o order[T]) compare(a, aid, b, bid string) int {
	if (a == "") != (b == "") {
		return cmp.Compare(len(b), len(a))
	}
	way := 1
	if o.descending {
		way = -1
	}
	return way * cmp.Or(strings.Compare(a, b), strings.Compare(aid, bid))
}

// String is the cursor as clients have it: they send it back and read nothing in it.
func (c cursor) String() string {
	return base64.RawURLEncoding.EncodeToString(encode(c))
}

func parseCursor(s string, asked cursor) (cursor, error) {
	var at cursor
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return at, fmt.Errorf("it was changed")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&at); err != nil || at.String() != s {
		return at, fmt.Errorf("it was changed")
	}
	asked.Value, asked.ID = at.Value, at.ID
	if at != asked {
		return at, fmt.Errorf("it is of a list with other parameters")
	}
	return at, nil
}

// Invalid refuses a parameter or a field of the body.
func Invalid(field, message string, advice ...string) error {
	p := problem.New(problem.Validation, message, advice...)
	p.Field = field
	return p
}

// Sortable writes a time so that text sorts as time does; "" for none.
func Sortable(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000000000Z")
}

// Number writes a number that is not negative so that text sorts as numbers do.
func Number(n *int) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%010d", *n)
}

// may is *s, "" for none.
func may(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
