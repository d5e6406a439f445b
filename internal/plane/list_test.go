package plane

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

func people(n int) (all []Signin) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		s := Signin{ID: fmt.Sprintf("t/s%04d", i), Login: fmt.Sprintf("u%d@example.com", i%7), Device: strings.Repeat("é", random.IntN(200)), Phase: []string{"Ready", "Pending"}[i%2]}
		if i%3 > 0 {
			s.ValidUntil = new(time.Unix(int64(random.IntN(50)), 0))
		}
		all = append(all, s)
	}
	return all
}

func ids(page []Signin) (ids []string) {
	for _, s := range page {
		ids = append(ids, s.ID)
	}
	return ids
}

// For every sort column, the pages together are the list: each object once, in one order, with unknown values last.
func TestPagesAreTheList(t *testing.T) {
	all := people(120)
	for _, sort := range []Text{"", "id", "-id", "login", "-login", "validUntil", "-validUntil", "device", "-device", "phase"} {
		for _, limit := range []PageLimit{1, 7, 119, 120, 500} {
			whole, page, err := signins().page(all, "", ListRequest{Sort: sort, Limit: 500})
			switch {
			case err != nil:
				t.Fatalf("%v; sort = %q", err, sort)
			case *page.Total != 120:
				t.Fatalf("*page.Total = %v, want 120; sort = %q", *page.Total, sort)
			case page.Next != "":
				t.Fatalf("page.Next = %q, want none; sort = %q", page.Next, sort)
			case len(whole) != 120:
				t.Fatalf("len(whole) = %v, want 120; sort = %q", len(whole), sort)
			}
			var got []string
			req := ListRequest{Sort: sort, Limit: limit}
			for {
				some, page, err := signins().page(all, "", req)
				switch {
				case err != nil:
					t.Fatalf("%v; sort = %q; %q", err, sort, req.Cursor)
				case *page.Total != 120:
					t.Fatalf("*page.Total = %v, want 120; sort = %q; %q", *page.Total, sort, req.Cursor)
				case page.Limit != int(limit):
					t.Fatalf("page.Limit = %v, want %v; sort = %q; %q", page.Limit, int(limit), sort, req.Cursor)
				case len(some) == 0:
					t.Fatalf("len(some) = %v; sort = %q; %q", len(some), sort, req.Cursor)
				case len(page.Next) > maxCursor:
					t.Fatalf("len(page.Next) = %v, want at most %v; sort = %q; %q", len(page.Next), maxCursor, sort, req.Cursor)
				}
				got = append(got, ids(some)...)
				if req.Cursor = Cursor(page.Next); req.Cursor == "" {
					break
				}
			}
			if !slices.Equal(got, ids(whole)) {
				t.Errorf("%q by %d: the pages are not the list", sort, limit)
			}
		}
	}
	for _, sort := range []Text{"validUntil", "-validUntil"} {
		whole, _, _ := signins().page(all, "", ListRequest{Sort: sort, Limit: 500})
		if whole[119].ValidUntil != nil || whole[0].ValidUntil == nil {
			t.Errorf("%q: unknown values are not last", sort)
		}
	}
}

// Changes on earlier pages do not shift later pages.
func TestCursorIsStable(t *testing.T) {
	all := people(100)
	first, page, err := signins().page(all, "", ListRequest{Sort: "login", Limit: 40})
	if err != nil {
		t.Fatal(err)
	}
	rest, _, _ := signins().page(all, "", ListRequest{Sort: "login", Limit: 500, Cursor: Cursor(page.Next)})
	deleted := map[string]bool{first[0].ID: true, first[39].ID: true} // also the object that the cursor names
	fewer := slices.DeleteFunc(slices.Clone(all), func(s Signin) bool { return deleted[s.ID] })
	fewer = append(fewer, Signin{ID: "t/a", Login: "a@example.com"})
	after, page, err := signins().page(fewer, "", ListRequest{Sort: "login", Limit: 500, Cursor: Cursor(page.Next)})
	switch {
	case err != nil:
		t.Error(err)
	case !slices.Equal(ids(after), ids(rest)):
		t.Errorf("slices.Equal(ids(after), ids(rest)) is false; %d, %d, page = %+v, %v", len(after), len(rest), page, err)
	case *page.Total != 99:
		t.Errorf("*page.Total = %v, want 99", *page.Total)
	}
}

func TestListParameters(t *testing.T) {
	all := people(100)
	_, page, _ := signins().page(all, "", ListRequest{Limit: 10})
	next := Cursor(page.Next)
	for why, c := range map[string]struct {
		req   ListRequest
		code  problem.Code
		field string
		total int
	}{
		"nothing":             {ListRequest{}, "", "", 100},
		"a text":              {ListRequest{Q: "U3@EXAMPLE"}, "", "", 14},
		"a text of the id":    {ListRequest{Q: "s0042"}, "", "", 1},
		"a state":             {ListRequest{State: "Pending"}, "", "", 50},
		"both":                {ListRequest{State: "Pending", Q: "u3@"}, "", "", 7},
		"no such state":       {ListRequest{State: "pending"}, problem.Validation, "state", 0},
		"no such column":      {ListRequest{Sort: "secret"}, problem.Validation, "sort", 0},
		"another sort":        {ListRequest{Cursor: next, Sort: "login"}, problem.BadRequest, "", 0},
		"another text":        {ListRequest{Cursor: next, Q: "u"}, problem.BadRequest, "", 0},
		"cut":                 {ListRequest{Cursor: next[:len(next)-2]}, problem.BadRequest, "", 0},
		"changed":             {ListRequest{Cursor: "A" + next[1:]}, problem.BadRequest, "", 0},
		"not a cursor":        {ListRequest{Cursor: "40"}, problem.BadRequest, "", 0},
		"of another list":     {ListRequest{Cursor: Cursor(listCursor{Kind: KindCluster, ID: "a"}.String())}, problem.BadRequest, "", 0},
		"written another way": {ListRequest{Cursor: Cursor(base64.RawURLEncoding.EncodeToString([]byte(`{"i":"t/s0009","k":"signin"}`)))}, problem.BadRequest, "", 0},
		"its own":             {ListRequest{Cursor: next}, "", "", 100},
	} {
		_, page, err := signins().page(all, "", c.req)
		field := ""
		if err != nil {
			field = problem.From(err).Field
		}
		total := 0
		if page.Total != nil {
			total = *page.Total
		}
		switch {
		case problem.CodeOf(err) != c.code:
			t.Errorf("%s: problem.CodeOf(err) != c.code, page = %+v, %v, field = %q", why, page, err, field)
		case total != c.total:
			t.Errorf("%s: total = %v, want %v; page = %+v", why, total, c.total, page)
		case field != c.field:
			t.Errorf("%s: field = %q, want %q; page = %+v", why, field, c.field, page)
		}
	}
	for _, bad := range []string{"", "0", "-1", "501", "+5", "5.0", "x", "99999999999999999999"} {
		if new(PageLimit).UnmarshalText([]byte(bad)) == nil {
			t.Errorf("a limit of %q", bad)
		}
	}
	switch {
	case new(Text).UnmarshalText([]byte{0xff}) == nil:
		t.Error("anything is a parameter: new(Text).UnmarshalText([]byte{0xff}) is nil, want an error")
	case new(Text).UnmarshalText(make([]byte, 513)) == nil:
		t.Error("anything is a parameter: new(Text).UnmarshalText(make([]byte, 513)) is nil, want an error")
	case new(Cursor).UnmarshalText(make([]byte, maxCursor+1)) == nil:
		t.Error("anything is a parameter: new(Cursor).UnmarshalText(make([]byte, maxCursor+1)) is nil, want an error")
	}
}

// Each column of each list works for an object of which nothing is known.
func TestColumns(t *testing.T) {
	columns(t, clusters())
	columns(t, signins())
	columns(t, tailnets())
	columns(t, gateways())
	columns(t, routes())
	columns(t, proxyGroups())
	columns(t, adapters())
}

func columns[T Object](t *testing.T, of table[T]) {
	var nothing T
	for name := range of.Columns(nothing) {
		if _, _, err := of.page([]T{nothing, nothing}, "", ListRequest{Sort: Text("-" + name), Q: "q"}); err != nil {
			t.Errorf("%s by %s: %v", of.Name, name, err)
		}
	}
	for _, s := range of.States {
		if _, _, err := of.page([]T{nothing}, "", ListRequest{State: Text(s)}); err != nil {
			t.Errorf("%s in %s: %v", of.Name, s, err)
		}
	}
}
