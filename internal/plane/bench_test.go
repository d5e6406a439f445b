package plane_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/plane"
)

// BenchmarkList measures one page of 10,000 sign-ins, searched and sorted by time.
func BenchmarkList(b *testing.B) {
	o := newEnv(time.Now).as(alice())
	var all []plane.Object
	for i := range 10_000 {
		s := signinOf(fmt.Sprintf("u%d@example.com", i%500), fmt.Sprintf("s%05d", i))
		s.ValidUntil = new(noon.Add(time.Duration(i*7919%10_000) * time.Second))
		all = append(all, s)
	}
	o.store.Replace(plane.KindSignin, "kubernetes", all)
	for b.Loop() {
		if w, _ := o.do("GET", "/api/v1/signins?sort=-validUntil&q=example", ""); w.Code != http.StatusOK {
			b.Fatal(w.Body)
		}
	}
}

// BenchmarkPut measures one change of an object among 10,000.
func BenchmarkPut(b *testing.B) {
	store := plane.NewStore(time.Now)
	var all []plane.Object
	for i := range 10_000 {
		all = append(all, signinOf("alice@example.com", fmt.Sprintf("s%05d", i)))
	}
	store.Replace(plane.KindSignin, "kubernetes", all)
	n := 0
	for b.Loop() {
		s := signinOf("alice@example.com", "s00001")
		s.Role = fmt.Sprint(n)
		n++
		store.Set(plane.KindSignin, "kubernetes", s)
	}
}
