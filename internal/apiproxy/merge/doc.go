// Package merge makes one list and one watch of those of several clusters. It
// keeps law 7: a list is whole or it is an error, and a watch says nothing that
// no cluster said; who is left out is said, and what cannot be known is expired,
// so that the client reads again.
//
// It knows bytes, not HTTP. A server makes a [Collection] for a request, whose
// Ask sends a member the client's request with other positions:
//
//	c := &merge.Collection{
//		Members: members, Epoch: doc.Epoch, Width: doc.Width, Spread: true,
//		Hash: position.CollectionHash(r.URL.Path, query.Get("labelSelector"), query.Get("fieldSelector")),
//		Ring: rings.For(collection), // one *position.Ring for all streams of a collection
//		Bare: query.Get("includeObject") == "None",
//		Ask: func(ctx context.Context, m merge.Member, a position.Ask) (*merge.Body, error) {
//			v := maps.Clone(query)
//			a.Set(v) // positions, limit, watch; selectors stay
//			v.Set("includeObject", ...) // Metadata for None: rows must be named
//			resp, err := clusters[m.Name].Get(ctx, path, v, accept) // for a.Names: JSON metadata lists
//			if err != nil {
//				return nil, err
//			}
//			form, ok := wire.ParseForm(resp.Header.Get("Content-Type"))
//			if resp.StatusCode != 200 {
//				defer resp.Body.Close()
//				b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
//				return nil, wire.ParseStatus(b, form.Proto, resp.StatusCode)
//			}
//			form.Shape = shape // what Accept asked for; the Content-Type of an answer does not say
//			if a.Names {
//				form.Shape = wire.Metadata
//			}
//			return &merge.Body{ReadCloser: resp.Body, Form: form}, nil
//		},
//	}
//
// A list:
//
//	list, err := c.List(r.Context(), position.ParseQuery(query, false))
//	if errors.Is(err, merge.ErrForms) {
//		// ask again, with an Ask that accepts JSON only
//	}
//	if status, ok := errors.AsType[*wire.Status](err); ok {
//		// w.WriteHeader(status.Code), status.Append, Retry-After: status.RetryAfter
//	}
//	defer list.Close()
//	w.Header().Set("Content-Type", list.Form.MediaType(false)) // and a Warning for each of list.Left
//	if _, err := list.WriteTo(w); err != nil {
//		panic(http.ErrAbortHandler) // never a well-formed short list
//	}
//
// A watch. Flush of an http.ResponseController sends the headers, too:
//
//	watch, err := c.Watch(r.Context(), position.ParseQuery(query, true), wire.Form{Proto: prefersProto})
//	// errors as above
//	watch.Timeout, watch.Drain, watch.Report = timeout, draining, report
//	w.Header().Set("Content-Type", watch.Form.MediaType(true))
//	err = watch.Run(r.Context(), &merge.Framed{Out: w, Proto: watch.Form.Proto, Push: controller.Flush})
//
// After an error of Run that is no *wire.Status the connection is to be aborted.
// For a WebSocket, a [Sink] of the server's own makes each event one message.
//
// A request on a collection that one cluster keeps goes through
// [position.Place.Single] first, and a GET of a name through
// [position.Place.Named]: a vector must never reach a cluster. A collection that
// was kept elsewhere before is a Collection of one member, whose positions are
// vectors for that reason.
package merge
