// Asio and Beast are compiled once, here; the sources of the HTTP server see declarations only.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
#ifdef SPATE_TLS
#include <boost/asio/ssl/impl/src.hpp>
#endif
