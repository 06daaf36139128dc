package testbed

var (
	UnderWay = underWay
	LimitOf  = limitOf
)

// Expire makes this run reach its limit, and does not return.
func Expire() {
	expireNow <- struct{}{}
	select {}
}
