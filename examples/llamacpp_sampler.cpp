// A sampler for llama.cpp that draws by our race, and what it is for: a draft and a target that draw with the same noise.
// llama.cpp's own way to speculate, sampling every row of the target and keeping what equals the draft, then keeps more.
//
//   g++ -std=c++17 -O2 llamacpp_sampler.cpp $(pkg-config --cflags --libs specdec) -I llama.cpp/include -lllama -o sampler
//   ./sampler target.gguf draft.gguf
#include <llama.h>
#include <specdec.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

// ---- the sampler ---------------------------------------------------------------------------------------------------

struct Race {
  int64_t seed, start, position;  // position: of the token that is drawn next; accept() moves it
  specdec_law law;
  std::vector<float> row;  // logits by token
};

static Race& race_of(const llama_sampler* sampler) { return *static_cast<Race*>(sampler->ctx); }

static llama_token drawn(const Race& race, const float* logits, int vocab) {
  int64_t token = -1;
  specdec_race_sample_params params = {};
  params.rows.data = logits;
  params.rows.row_stride = params.rows.request_stride = vocab;
  params.rows.requests = params.rows.rows = 1;
  params.rows.vocab = vocab;
  params.law = race.law;
  params.noise.seed.value = race.seed;
  params.noise.position.value = race.position;
  params.tokens.data = &token;
  params.tokens.row_stride = params.tokens.rows = params.tokens.columns = 1;
  if (specdec_cpu_race_sample(&params, 1) != SPECDEC_OK) {
    std::fprintf(stderr, "%s\n", specdec_last_error());
    std::exit(1);
  }
  return static_cast<llama_token>(token);
}

// What stands before it in a chain may have dropped candidates or sorted them: the race needs them by token.
static void race_apply(llama_sampler* sampler, llama_token_data_array* candidates) {
  Race& race = race_of(sampler);
  if (candidates->size < race.row.size()) {
    race.row.assign(race.row.size(), -std::numeric_limits<float>::infinity());
  }
  for (size_t i = 0; i < candidates->size; ++i) race.row[candidates->data[i].id] = candidates->data[i].logit;
  const llama_token token = drawn(race, race.row.data(), static_cast<int>(race.row.size()));
  size_t place = static_cast<size_t>(token);
  if (place >= candidates->size || candidates->data[place].id != token) {
    for (place = 0; candidates->data[place].id != token;) ++place;
  }
  candidates->selected = static_cast<int64_t>(place);
}

static const char* race_name(const llama_sampler*) { return "race"; }
static void race_accept(llama_sampler* sampler, llama_token) { ++race_of(sampler).position; }
static void race_reset(llama_sampler* sampler) { race_of(sampler).position = race_of(sampler).start; }
static void race_free(llama_sampler* sampler) { delete &race_of(sampler); }
static llama_sampler* race_clone(const llama_sampler* sampler);

static llama_sampler_i race_interface() {
  llama_sampler_i functions = {};  // those for backends are left out: it runs on the CPU
  functions.name = race_name;
  functions.accept = race_accept;
  functions.apply = race_apply;
  functions.reset = race_reset;
  functions.clone = race_clone;
  functions.free = race_free;
  return functions;
}

static llama_sampler* race_init(const Race& race) {
  static llama_sampler_i functions = race_interface();
  return llama_sampler_init(&functions, new Race(race));
}

static llama_sampler* race_clone(const llama_sampler* sampler) { return race_init(race_of(sampler)); }

// Of a vocabulary, for texts whose first token to draw has this position. Filters in the order of llama.cpp's default
// chain: top-k, top-p, min-p, temperature; 0, 1, 0 and 1 are off.
extern "C" llama_sampler* race_sampler(int vocab, int64_t seed, int64_t position, float temperature, int top_k,
                                       float top_p, float min_p) {
  Race race = {seed, position, position, {}, std::vector<float>(vocab)};
  race.law.temperature.value = temperature;
  race.law.top_k.value = top_k;
  race.law.top_p.value = top_p;
  race.law.min_p.value = min_p;
  race.law.rules = SPECDEC_FILTERED | SPECDEC_BEFORE_TEMPERATURE | SPECDEC_TOP_P_AFTER_TOP_K;
  return race_init(race);
}

// Draws the token at `position` next: where a draft begins, and after one was taken back.
extern "C" void race_seek(llama_sampler* sampler, int64_t position) { race_of(sampler).position = position; }

// llama_sampler_sample() of this sampler alone, from the logits where they lie: no array of candidates is filled.
extern "C" llama_token race_sample(llama_sampler* sampler, llama_context* context, int index) {
  const Race& race = race_of(sampler);
  const llama_token token = drawn(race, llama_get_logits_ith(context, index), static_cast<int>(race.row.size()));
  race_accept(sampler, token);
  return token;
}

// ---- a program -----------------------------------------------------------------------------------------------------

enum { NEW = 64, DRAFTS = 4 };
using Tokens = std::vector<llama_token>;

static void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s: failed\n", what);
  std::exit(1);
}

// A model, and how much of the text it has read.
struct Reader {
  llama_model* model;
  llama_context* context;
  int read = 0;

  explicit Reader(const char* path) {
    model = llama_model_load_from_file(path, llama_model_default_params());
    require(model, path);
    llama_context_params params = llama_context_default_params();
    params.n_threads = params.n_threads_batch = 1;
    context = llama_init_from_model(model, params);
    require(context, path);
  }
  ~Reader() {
    llama_free(context);
    llama_model_free(model);
  }
  int vocab() const { return llama_vocab_n_tokens(llama_model_get_vocab(model)); }

  // Reads what it has not read of a text; logits of the last `rows` tokens.
  void operator()(const Tokens& text, int rows) {
    const int unread = static_cast<int>(text.size()) - read;
    llama_batch batch = llama_batch_init(unread, 0, 1);
    for (int i = 0; i < unread; ++i) {
      batch.token[i] = text[read + i];
      batch.pos[i] = read + i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = i >= unread - rows;
    }
    batch.n_tokens = unread;
    require(llama_decode(context, batch) == 0, "llama_decode");
    llama_batch_free(batch);
    read = static_cast<int>(text.size());
  }

  void take_back(int length) {
    if (length >= read) return;
    require(llama_memory_seq_rm(llama_get_memory(context), 0, length, -1), "llama_memory_seq_rm");
    read = length;
  }
};

// Draws one token after the other.
template <class Sample>
static Tokens plain(Reader& target, Tokens text, const Sample& sample) {
  target.take_back(0);
  for (int i = 0; i < NEW; ++i) {
    target(text, 1);
    text.push_back(sample(-1));
  }
  return text;
}

// Draws every row of a round, and keeps what equals the draft.
static Tokens speculative(Reader& target, Reader& draft, llama_sampler* ours, llama_sampler* theirs, Tokens text,
                          int* calls) {
  const size_t end = text.size() + NEW;
  target.take_back(0);
  draft.take_back(0);
  for (*calls = 0; text.size() < end; ++*calls) {
    const int begin = static_cast<int>(text.size());
    Tokens drafted = text;
    race_seek(theirs, begin);
    for (int i = 0; i < DRAFTS; ++i) {
      draft(drafted, 1);
      drafted.push_back(race_sample(theirs, draft.context, -1));
    }
    target(drafted, DRAFTS + 1);
    for (int i = 0; i <= DRAFTS && text.size() < end; ++i) {
      text.push_back(race_sample(ours, target.context, i - DRAFTS - 1));
      if (i < DRAFTS && text.back() != drafted[begin + i]) break;
    }
    const int kept = static_cast<int>(text.size()) - 1;  // the last token was not read
    target.take_back(kept);
    draft.take_back(kept);
  }
  return text;
}

#if !defined(SAMPLER_ONLY)
int main(int count, char** arguments) {
  require(count == 3, "expected two models: target.gguf draft.gguf");
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  Reader target(arguments[1]), draft(arguments[2]);
  const llama_vocab* const vocab = llama_model_get_vocab(target.model);

  const std::string prompt = "ROMEO:";
  Tokens text(prompt.size() + 1);
  text.resize(llama_tokenize(vocab, prompt.data(), static_cast<int>(prompt.size()), text.data(),
                             static_cast<int>(text.size()), true, false));
  const int64_t begin = static_cast<int64_t>(text.size());
  const auto sampler = [&] { return race_sampler(target.vocab(), 2026, begin, 0.8f, 40, 0.95f, 0.05f); };

  llama_sampler* const chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  llama_sampler_chain_add(chain, sampler());
  llama_sampler* const ours = sampler();
  llama_sampler* const theirs = llama_sampler_clone(ours);

  const Tokens first =
      plain(target, text, [&](int index) { return llama_sampler_sample(chain, target.context, index); });
  const Tokens second = plain(target, text, [&](int index) { return race_sample(ours, target.context, index); });
  llama_sampler_reset(ours);
  int calls = 0;
  const Tokens third = speculative(target, draft, ours, theirs, text, &calls);

  for (llama_token token : third) {
    char piece[16];
    std::fwrite(piece, 1, llama_token_to_piece(vocab, token, piece, sizeof piece, 0, false), stdout);
  }
  std::printf("\n%d tokens by %d calls of the target\n", NEW, calls);
  require(first == second, "a chain and the sampler alone");
  require(first == third, "a draft and none");
  for (llama_sampler* each : {chain, ours, theirs}) llama_sampler_free(each);
  return 0;
}
#endif
