// The page's words in English and Chinese. t('key', {name: value}) fills {name}.

import { local } from './storage.js';

const texts = {
  chat: ['Chat', '对话'], live: ['Live', '实时'], metrics: ['Metrics', '指标'], model: ['Model', '模型'], playground: ['Playground', '实验场'], log: ['Log', '日志'], leastLevel: ['At least', '最低级别'],
  newChat: ['New chat', '新对话'], conversations: ['Conversations', '对话列表'], untitled: ['New chat', '新对话'], search: ['Search chats', '搜索对话'],
  askAnything: ['Ask anything…', '输入消息…'], send: ['Send', '发送'], stop: ['Stop', '停止'], stopped: ['Stopped', '已停止'], lengthReached: ['Cut at the token limit', '达到长度上限'],
  copy: ['Copy', '复制'], copied: ['Copied', '已复制'], edit: ['Edit', '编辑'], regenerate: ['Regenerate', '重新生成'], remove: ['Delete', '删除'], cancel: ['Cancel', '取消'], save: ['Save', '保存'], saveAndSend: ['Save and send', '保存并发送'],
  previousVersion: ['Previous version', '上一版本'], nextVersion: ['Next version', '下一版本'], version: ['Version {i} of {n}', '第 {i} / {n} 版'],
  thinking: ['Thinking…', '思考中…'], reasoning: ['Reasoning', '思考过程'], toolCall: ['Tool call', '工具调用'], you: ['You', '你'], assistant: ['Assistant', '助手'],
  settings: ['Sampling', '采样设置'], systemPrompt: ['System prompt', '系统提示词'], systemHint: ['Instructions for this conversation', '本对话的指令'], temperature: ['Temperature', '温度'], topP: ['Top p', 'Top p'], topK: ['Top k', 'Top k'], minP: ['Min p', 'Min p'],
  maxTokens: ['Max tokens', '最大 token 数'], repetitionPenalty: ['Repetition penalty', '重复惩罚'], presencePenalty: ['Presence penalty', '存在惩罚'], frequencyPenalty: ['Frequency penalty', '频率惩罚'], seed: ['Seed', '随机种子'], stopTexts: ['Stop texts', '停止文本'], stopHint: ['one per line', '每行一个'], enableThinking: ['Let the model reason', '允许模型思考'],
  modelDefault: ['default', '默认'], reset: ['Reset to the model’s defaults', '恢复模型默认'], tools: ['Tools (JSON)', '工具（JSON）'], toolsHint: ['OpenAI’s "tools" array', 'OpenAI 的 "tools" 数组'], badJson: ['Not valid JSON: {why}', 'JSON 无效：{why}'],
  copyAs: ['Copy as code', '复制为代码'], request: ['Request', '请求'], exportAll: ['Export', '导出'], importFile: ['Import', '导入'], importFailed: ['This file holds no conversations of this page.', '该文件不含本页面的对话。'],
  theme: ['Light or dark', '浅色或深色'], language: ['中文', 'English'], keyboard: ['Keyboard', '键盘'], menu: ['Menu', '菜单'], close: ['Close', '关闭'], skip: ['Skip to the content', '跳到内容'],
  apiKey: ['API key', 'API 密钥'], apiKeyHint: ['This server asks for a key. It is kept until this tab is closed, and sent in a header only.', '此服务器需要密钥。密钥仅保存到关闭此标签页为止，只通过请求头发送。'], wrongKey: ['The server did not accept this key.', '服务器未接受该密钥。'],
  welcome: ['What would you like to ask?', '想问点什么？'], loading: ['The model is loading: {percent} %', '模型加载中：{percent} %'], offline: ['The server does not answer. Trying again…', '服务器无响应，正在重试…'], draining: ['The server is shutting down.', '服务器正在关闭。'],
  failed: ['The answer failed: {why}', '回答失败：{why}'], retry: ['Try again', '重试'], tokens: ['{n} tokens', '{n} token'], cachedTokens: ['{n} cached', '缓存 {n}'], example1: ['Explain KV caching to a colleague', '向同事解释 KV 缓存'], example2: ['Write a haiku about queues', '写一首关于队列的俳句'], example3: ['Show a quicksort in Python', '用 Python 写快速排序'],
  running: ['Running', '运行中'], waiting: ['Waiting', '等待中'], kvInUse: ['KV cache in use', 'KV 缓存占用'], prefixHits: ['Prefix hits', '前缀命中'], tokensIn: ['Input tok/s', '输入 token/s'], tokensOut: ['Output tok/s', '输出 token/s'], preemptions: ['Preemptions', '抢占次数'],
  requests: ['Requests', '请求'], phase: ['Phase', '阶段'], age: ['Age', '时长'], prompt: ['Prompt', '提示'], computed: ['Computed', '已计算'], generated: ['Generated', '已生成'], cached: ['Cached', '已缓存'], blocks: ['Blocks', '块'], abort: ['Abort', '中止'], abortRequest: ['Abort request {id}', '中止请求 {id}'], noRequests: ['Nothing runs. Requests appear here as they come.', '当前没有请求，新请求会显示在此处。'],
  steps: ['The last {n} steps', '最近 {n} 步'], stepsHint: ['Each bar is one step of the engine: its tokens by what they were for.', '每个柱形是引擎的一步，按用途划分 token。'], prefill: ['prefill', '预填充'], decode: ['decode', '解码'], wasted: ['wasted', '浪费'], kvMap: ['KV cache', 'KV 缓存'], free: ['free', '空闲'], shared: ['shared', '共享'], request1: ['request', '请求'],
  mapHint: ['{blocks} blocks of {size} tokens; a cell is {each}.', '{blocks} 块，每块 {size} token；每格 {each} 块。'], paused: ['Not connected. Trying again…', '未连接，正在重试…'], connected: ['Live', '实时'], more: ['and {n} more', '另有 {n} 个'],
  last15: ['The last 15 minutes, kept by the server', '最近 15 分钟，由服务器保存'], throughput: ['Throughput', '吞吐量'], ttft: ['Time to first token', '首 token 时间'], itl: ['Time between tokens', 'token 间隔'], queue: ['Requests', '请求'], stepTime: ['Step time', '每步时间'], memory: ['Memory', '内存'], hitRate: ['Prefix cache hit rate', '前缀缓存命中率'], process: ['process', '进程'],
  architecture: ['Architecture', '架构'], memorySplit: ['Memory', '内存分配'], configuration: ['Configuration', '配置'], value: ['Value', '值'], source: ['Source', '来源'], name: ['Name', '名称'], chatTemplate: ['Chat template', '对话模板'], templatePreview: ['Prompt preview', '提示预览'], tokenizer: ['Tokenizer', '分词器'], tokenizerHint: ['Type a text to see its tokens', '输入文本查看 token'], weights: ['weights', '权重'], kvCache: ['KV cache', 'KV 缓存'], filter: ['Filter', '筛选'], count: ['{n} tokens, {m} characters', '{n} 个 token，{m} 个字符'],
  complete: ['Complete', '补全'], promptText: ['Text to continue', '待补全文本'], probabilities: ['Colours: probability of each token. Hover or focus one for its alternatives.', '颜色表示每个 token 的概率，悬停或聚焦可查看候选。'], schema: ['JSON schema', 'JSON 模式'], schemaHint: ['The answer must match this schema; empty: free text', '输出必须符合该模式；留空则不限'], alternatives: ['Alternatives', '候选'],
  allowedHere: ['The schema allows {n} tokens here', '模式在此处允许 {n} 个 token'], allowedOne: ['The schema allows one token here', '模式在此处只允许一个 token'], mayEnd: ['the end', '结束'],
  keySend: ['Send', '发送'], keyLine: ['New line', '换行'], keyStop: ['Stop the answer', '停止回答'], keyNew: ['New chat', '新对话'], keyFocus: ['Go to the message box', '跳到输入框'], keyEdit: ['Edit the last message (in the empty box)', '编辑上一条消息（输入框为空时）'], keyPages: ['Pages', '切换页面'], keyHelp: ['This list', '显示此列表'],
};

let language = local.getItem('spate.language') || (navigator.language.startsWith('zh') ? 'zh' : 'en');

export function t(key, values) {
  const text = texts[key][language === 'zh' ? 1 : 0];
  return values ? text.replace(/\{(\w+)\}/g, (_, name) => values[name]) : text;
}

export const currentLanguage = () => language;

export function setLanguage(value) {
  language = value;
  local.setItem('spate.language', value);
  document.documentElement.lang = value;
}
